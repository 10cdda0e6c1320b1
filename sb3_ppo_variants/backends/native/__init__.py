"""The same computation as over arrays, by a library of our own in C++, which is built with the package."""
