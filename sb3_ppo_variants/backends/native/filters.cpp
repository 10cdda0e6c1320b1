// The first layer of SB3's convolutional network on bytes: 32 filters of 8 x 8 pixels and 4 channels, with a stride of
// 4, followed by ReLU. It requires a processor that multiplies bfloat16 matrices (AMX).
//
// Nothing is rounded to bfloat16. This type holds a byte exactly, and three of them hold a single-precision number: its
// first, middle and last 8 bits. Each product of a byte and such a part is exact, and sums are in single precision.
#include <stdint.h>

#include "exported.hpp"
#include "interface.hpp"

#if defined(__x86_64__) && defined(__linux__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define HAS_TILES
#endif
#endif

#ifdef HAS_TILES
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

bool may_use_tiles() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM and the state component of AMX's tiles.
    unsigned a, b, c, d;
    const bool has_tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    return has_tiles && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

}  // namespace

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")
#endif

#include "tiles.hpp"

#include "pixels.hpp"

namespace {

__attribute__((noinline)) void relu(float* numbers, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) {
        // With the operands in this order, NaN stays NaN.
        _mm512_storeu_ps(numbers + i, _mm512_max_ps(_mm512_setzero_ps(), _mm512_loadu_ps(numbers + i)));
    }
}

// Writes the parts of the weights as tiles. The indices are the row of the filters, the part, the half of the filters,
// the pair of weights, the filter, and the position in the pair.
__attribute__((noinline)) void weight_tiles(const float* weights, uint16_t* tiles) {
    constexpr int64_t ROW = SIZE * CHANNELS, TILE = TILE_ROWS * LANES * 2;
    for (int64_t filter = 0; filter < FILTERS; ++filter)
        for (int64_t i = 0; i < PATCH; ++i) {
            const int64_t y = i / ROW, pair = i % ROW / 2, half = filter / LANES;
            float left = weights[filter * PATCH + i];
            for (int64_t part = 0; part < PARTS; ++part) {
                uint32_t number;
                memcpy(&number, &left, sizeof number);
                tiles[((y * PARTS + part) * 2 + half) * TILE + (pair * LANES + filter % LANES) * 2 + i % 2] =
                    uint16_t(number >> 16);
                number &= 0xffff0000;
                float first;
                memcpy(&first, &number, sizeof first);
                left -= first;
            }
        }
}

// A part of the output, given by the beginning of its first patch and its first number.
struct Part {
    const uint16_t* patch;
    float* output;
};

inline void filter_two(Part a, Part b, int64_t row, const uint16_t* weights, const float* bias) {
    constexpr int64_t TILE = TILE_ROWS * TILE_BYTES / 2;
    _tile_loadd(0, bias, 0);
    _tile_loadd(1, bias + LANES, 0);
    _tile_loadd(2, bias, 0);
    _tile_loadd(3, bias + LANES, 0);
    for (int64_t y = 0; y < SIZE; ++y) {
        _tile_loadd(4, a.patch + y * row, NEXT * 2);
        _tile_loadd(5, b.patch + y * row, NEXT * 2);
        for (int64_t part = 0; part < PARTS; ++part, weights += 2 * TILE) {
            _tile_loadd(6, weights, TILE_BYTES);
            _tile_loadd(7, weights + TILE, TILE_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, a.output, FILTERS * 4);
    _tile_stored(1, a.output + LANES, FILTERS * 4);
    _tile_stored(2, b.output, FILTERS * 4);
    _tile_stored(3, b.output + LANES, FILTERS * 4);
}

int64_t filter(const Images& images, const float* weights, const float* bias, float* output, char* memory) {
    const int64_t row = images.width * CHANNELS, size = images.height * row;
    const Output out(images, TILE_ROWS, 1);
    char* const begin = memory;
    uint16_t* parts = take<uint16_t>(memory, PARTS * FILTERS * PATCH);
    uint16_t* numbers = take<uint16_t>(memory, size + LANES);
    uint8_t* bytes = take<uint8_t>(memory, size + LANES);
    if (!begin) return memory - begin;
    Tiles tiles;
    tiles.set(0, 5, out.part, TILE_BYTES);
    tiles.set(6, 7, TILE_ROWS, TILE_BYTES);
    weight_tiles(weights, parts);
    memory_is_read();
    _tile_loadconfig(&tiles);
    for (int64_t i = 0; i < images.count; ++i, output += out.numbers()) {
        read(images, i, bytes);
        as_numbers(bytes, size, numbers);
        memory_is_read();
        const auto part = [&](int64_t n) {
            const int64_t y = n / out.parts, left = n % out.parts * out.part;
            // The last part of a row may overlap the one before.
            const int64_t x = left + out.part <= out.width ? left : out.width - out.part;
            return Part{numbers + y * STEP * row + x * NEXT, output + (y * out.width + x) * FILTERS};
        };
        const int64_t n_parts = out.parts * out.height;
        for (int64_t n = 0; n < n_parts; n += 2)
            filter_two(part(n), part(n + 1 < n_parts ? n + 1 : n), row, parts, bias);
        relu(output, out.numbers());
    }
    _tile_release();
    return 0;
}

// The gradient with respect to the input of ReLU, for 16 filters at one pixel.
inline __m512 before_relu(const float* output, const float* gradient) {
    const __mmask16 passes = _mm512_cmp_ps_mask(_mm512_loadu_ps(output), _mm512_setzero_ps(), _CMP_NLE_UQ);
    return _mm512_maskz_loadu_ps(passes, gradient);
}

// Writes the gradient with respect to the input of ReLU, for 16 filters at up to 32 neighbouring pixels, as one tile
// per part with a row for each filter. Adds the sum over pixels to the gradient of the bias.
__attribute__((noinline)) void gradient_tiles(const float* output, const float* gradient, int64_t pixels,
                                              float* d_bias, uint32_t* tiles) {
    alignas(64) uint32_t parts[PARTS][TILE_ROWS * LANES] = {};
    __m512 sum = _mm512_loadu_ps(d_bias);
    for (int64_t pixel = 0; pixel < pixels; pixel += 2, output += 2 * FILTERS, gradient += 2 * FILTERS) {
        __m512 left = before_relu(output, gradient), right = _mm512_setzero_ps();
        if (pixel + 1 < pixels) right = before_relu(output + FILTERS, gradient + FILTERS);
        sum = _mm512_add_ps(sum, _mm512_add_ps(left, right));
        for (int64_t part = 0; part < PARTS; ++part) {
            const __m512i a = _mm512_castps_si512(left), b = _mm512_castps_si512(right);
            _mm512_store_si512(parts[part] + pixel / 2 * LANES, side_by_side(a, b));
            left = _mm512_sub_ps(left, _mm512_castsi512_ps(first_part(a)));
            right = _mm512_sub_ps(right, _mm512_castsi512_ps(first_part(b)));
        }
    }
    _mm512_storeu_ps(d_bias, sum);
    for (int64_t part = 0; part < PARTS; ++part) write_transposed(parts[part], tiles + part * 2 * TILE_ROWS * LANES);
}

// Computes the gradient of the weights in one row of the filters, for one image.
inline void gradient_of_row(const uint32_t* pairs, int64_t row, const uint32_t* tiles, const Output& out, float* sums) {
    constexpr int64_t TILE = TILE_ROWS * LANES;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t y = 0; y < out.height; ++y)
        for (int64_t n = 0; n < out.parts; ++n) {
            const uint32_t* at = pairs + y * STEP * row + n * out.part * NEXT;
            _tile_loadd(6, at, 2 * NEXT * 4);
            _tile_loadd(7, at + LANES, 2 * NEXT * 4);
            for (int64_t part = 0; part < PARTS; ++part, tiles += 2 * TILE) {
                _tile_loadd(4, tiles, TILE_BYTES);
                _tile_loadd(5, tiles + TILE, TILE_BYTES);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    _tile_stored(0, sums, PATCH * 4);
    _tile_stored(1, sums + LANES, PATCH * 4);
    _tile_stored(2, sums + LANES * PATCH, PATCH * 4);
    _tile_stored(3, sums + LANES * PATCH + LANES, PATCH * 4);
}

int64_t filter_gradient(const Images& images, const float* output, const float* gradient, float* d_weight,
                        float* d_bias, char* memory) {
    const int64_t row = images.width * CHANNELS, size = images.height * row;
    const Output out(images, 2 * TILE_ROWS, 2);
    constexpr int64_t TILES = PARTS * 2 * TILE_ROWS * LANES;  // The numbers for one part of the output.
    char* const begin = memory;
    // Pixels that only pad a tile read beyond the image and contribute nothing.
    uint32_t* pairs = take<uint32_t>(memory, size + 2 * TILE_ROWS * NEXT);
    uint8_t* bytes = take<uint8_t>(memory, size + NEXT + LANES);
    uint32_t* tiles = take<uint32_t>(memory, out.height * out.parts * TILES);
    float* sums = take<float>(memory, FILTERS * PATCH);
    float* bias_sums = take<float>(memory, FILTERS);
    if (!begin) return memory - begin;
    Tiles sizes;
    sizes.set(0, 3, TILE_ROWS, TILE_BYTES);
    sizes.set(4, 5, TILE_ROWS, out.part * 2);
    sizes.set(6, 7, out.part / 2, TILE_BYTES);
    memory_is_read();
    _tile_loadconfig(&sizes);
    for (int64_t i = 0; i < images.count; ++i, output += out.numbers(), gradient += out.numbers()) {
        read(images, i, bytes);
        as_pairs(bytes, size, pairs);
        memset(bias_sums, 0, FILTERS * sizeof(float));
        for (int64_t y = 0; y < out.height; ++y)
            for (int64_t n = 0; n < out.parts; ++n) {
                const int64_t x = n * out.part, at = (y * out.width + x) * FILTERS;
                const int64_t pixels = x + out.part <= out.width ? out.part : out.width - x;
                for (int64_t half = 0; half < 2; ++half)
                    gradient_tiles(output + at + half * LANES, gradient + at + half * LANES, pixels,
                                   bias_sums + half * LANES,
                                   tiles + (y * out.parts + n) * TILES + half * TILE_ROWS * LANES);
            }
        memory_is_read();
        for (int64_t y = 0; y < SIZE; ++y)
            gradient_of_row(pairs + y * row, row, tiles, out, sums + y * SIZE * CHANNELS);
        for (int64_t j = 0; j < FILTERS * PATCH; ++j) d_weight[j] += sums[j];
        for (int64_t j = 0; j < FILTERS; ++j) d_bias[j] += bias_sums[j];
    }
    _tile_release();
    return 0;
}

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

namespace {

bool may_use_tiles() { return false; }
int64_t filter(const Images&, const float*, const float*, float*, char*) { return 0; }
int64_t filter_gradient(const Images&, const float*, const float*, float*, float*, char*) { return 0; }

}  // namespace

#endif

// Whether the processor supports the other two functions.
EXPORTED int64_t ppo_may_filter() { return may_use_tiles(); }

// Computes the output, (height, width, 32) for each image; weights are (32, 8, 8, 4). With memory = nullptr this
// function and the next compute nothing and return how many bytes they need. The memory must be zeroed.
EXPORTED int64_t ppo_filter(const Images* images, const float* weights, const float* bias, float* output,
                            void* memory) {
    return filter(*images, weights, bias, output, static_cast<char*>(memory));
}

// Adds to the gradients with respect to weights and biases.
EXPORTED int64_t ppo_filter_gradient(const Images* images, const float* output, const float* gradient, float* d_weight,
                                     float* d_bias, void* memory) {
    return filter_gradient(*images, output, gradient, d_weight, d_bias, static_cast<char*>(memory));
}
