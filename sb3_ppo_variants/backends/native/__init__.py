"""Small networks, computed by a C++ library that is built with the package."""
