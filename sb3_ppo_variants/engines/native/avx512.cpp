// For processors with AVX-512.
#define INSTRUCTIONS avx512
#define VECTOR_BYTES 64
#define BLOCK_ROWS 8
#include "instruction_set.hpp"
#include "table.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
BEGIN_TARGET("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#include "computations.hpp"
END_TARGET
#endif
