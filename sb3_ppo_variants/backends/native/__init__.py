"""The same computation as over arrays, in a C++ library that is built with the package."""
