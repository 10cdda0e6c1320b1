// For processors with AVX-512.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <utility>

#include "table.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif

#define INSTRUCTIONS avx512
#define VECTOR_BYTES 64
#define BLOCK_ROWS 8

#include "computations.hpp"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
