// For every processor. Vectors have at least 16 bytes on x86-64 and arm64.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <utility>

#include "table.hpp"

#define INSTRUCTIONS plain
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define BLOCK_ROWS 8
#else
#define BLOCK_ROWS 4
#endif

#include "computations.hpp"
