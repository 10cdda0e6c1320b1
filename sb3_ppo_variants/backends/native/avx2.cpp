// For processors with AVX2 and FMA.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <utility>

#include "table.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define INSTRUCTIONS avx2
#define VECTOR_BYTES 32
#define BLOCK_ROWS 4

#include "computations.hpp"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
