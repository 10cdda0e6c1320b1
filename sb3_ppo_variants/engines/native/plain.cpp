// For every processor.
#include "computations.hpp"
