// For processors with AVX2 and FMA.
#define INSTRUCTIONS avx2
#define VECTOR_BYTES 32
#define BLOCK_ROWS 4
#include "instruction_set.hpp"
#include "table.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
BEGIN_TARGET("avx2,fma")
#include "computations.hpp"
END_TARGET
#endif
