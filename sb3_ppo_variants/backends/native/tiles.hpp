// Tiles, the matrices that a processor with AMX multiplies, and functions that prepare their contents.
namespace {

constexpr int64_t LANES = 16;                       // Numbers in a vector, and in a row of a tile.
constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64;  // The rows of the largest tile, and the bytes in each.

// The compiler's intrinsics for tiles do not declare that they read memory.
inline void memory_is_read() { __asm__ volatile("" ::: "memory"); }

// The sizes of the tiles. Tiles 0 to 3 hold sums, 4 and 5 left factors of products, 6 and 7 right factors.
struct alignas(64) Tiles {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int from, int to, int64_t n_rows, int64_t bytes) {
        for (int i = from; i <= to; ++i) {
            rows[i] = uint8_t(n_rows);
            row_bytes[i] = uint16_t(bytes);
        }
    }
};

template <class T> T* take(char*& memory, int64_t count) {
    T* piece = reinterpret_cast<T*>(memory);
    memory += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return piece;
}

inline __m512i bits(const uint8_t* bytes) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen)));
}

inline __m512i first_part(__m512i number) { return _mm512_and_si512(number, _mm512_set1_epi32(int(0xffff0000))); }

// Packs the upper halves of single-precision numbers, which are bfloat16 numbers, into pairs.
inline __m512i side_by_side(__m512i left, __m512i right) {
    return _mm512_or_si512(_mm512_srli_epi32(left, 16), first_part(right));
}

// One step of a transposition: swaps the off-diagonal blocks of `distance` x `distance` numbers.
template <int distance> inline void swap_blocks(__m512i* rows) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i other = _mm512_xor_si512(lane, _mm512_set1_epi32(distance));
    const __mmask16 right = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(distance));
    const __m512i second = _mm512_set1_epi32(LANES);
    const __m512i take_left = _mm512_mask_add_epi32(lane, right, other, second);
    const __m512i take_right = _mm512_mask_add_epi32(other, right, lane, second);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        if (!(i & distance)) {
            const __m512i a = rows[i], b = rows[i + distance];
            rows[i] = _mm512_permutex2var_epi32(a, take_left, b);
            rows[i + distance] = _mm512_permutex2var_epi32(a, take_right, b);
        }
}

// Writes the transpose of 16 x 16 numbers.
inline void write_transposed(const uint32_t* from, uint32_t* to) {
    __m512i rows[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) rows[i] = _mm512_load_si512(from + i * LANES);
    swap_blocks<1>(rows);
    swap_blocks<2>(rows);
    swap_blocks<4>(rows);
    swap_blocks<8>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) _mm512_storeu_si512(to + i * LANES, rows[i]);
}

}  // namespace
