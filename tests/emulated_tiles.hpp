// Computes AMX's tiles in plain C++, so that tiles.cpp can be tested on processors with AVX-512 alone. Include it first.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace emulated {

// What _tile_loadconfig reads, and the contents of the tiles.
struct {
    uint8_t head[16];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} sizes;
uint8_t tiles[8][16][64];

void load(int tile, const void* from, int64_t stride) {
    for (int row = 0; row < sizes.rows[tile]; ++row)
        memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride, sizes.row_bytes[tile]);
}

void store(int tile, void* to, int64_t stride) {
    for (int row = 0; row < sizes.rows[tile]; ++row)
        memcpy(static_cast<char*>(to) + row * stride, tiles[tile][row], sizes.row_bytes[tile]);
}

float bfloat16(const uint8_t* from) {
    float number = 0;
    memcpy(reinterpret_cast<uint8_t*>(&number) + 2, from, 2);
    return number;
}

// Adds products of rows of pairs in `a` and columns of pairs in `b`.
void multiply(int sums, int a, int b) {
    for (int row = 0; row < sizes.rows[sums]; ++row)
        for (int column = 0; column < sizes.row_bytes[sums]; column += 4)
            for (int pair = 0; pair < sizes.row_bytes[a] / 4; ++pair) {
                float sum;
                memcpy(&sum, tiles[sums][row] + column, 4);
                for (int i = 0; i < 4; i += 2)
                    sum += bfloat16(tiles[a][row] + 4 * pair + i) * bfloat16(tiles[b][pair] + column + i);
                memcpy(tiles[sums][row] + column, &sum, 4);
            }
}

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_zero
#define _tile_loadconfig(config) memcpy(&emulated::sizes, config, sizeof emulated::sizes)
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply
#define _tile_zero(tile) memset(emulated::tiles[tile], 0, sizeof emulated::tiles[tile])
#define _tile_release()
