// The first layer of SB3's convolutional network on bytes: 32 filters of 8 x 8 pixels and 4 channels, with a stride of
// 4, followed by ReLU. It requires a processor that multiplies bfloat16 matrices (AMX), which are called tiles.
//
// Nothing is rounded to bfloat16. This type holds a byte exactly, and three of them hold a single-precision number: its
// first, middle and last 8 bits. Each product of a byte and such a part is exact, and sums are in single precision.
#define INSTRUCTIONS tiles
#define VECTOR_BYTES 64
#define BLOCK_ROWS 8
#include "instruction_set.hpp"
#include "interface.hpp"

#if defined(__x86_64__) && defined(__linux__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define HAS_TILES
#endif
#endif

#ifdef HAS_TILES
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

bool has_tiles() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM and the state component of AMX's tiles.
    unsigned a, b, c, d;
    const bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    return has_amx && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

}  // namespace

BEGIN_TARGET("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")
#include "matrix.hpp"

namespace INSTRUCTIONS {
namespace {

constexpr int64_t FILTERS = 32, SIZE = 8, STEP = 4, CHANNELS = 4;
constexpr int64_t PATCH_ROW = SIZE * CHANNELS, PATCH = SIZE * PATCH_ROW;  // Bytes that a filter covers.
constexpr int64_t NEXT = STEP * CHANNELS;         // Bytes between the patches of neighbouring pixels of the output.
constexpr int64_t PARTS = 3;                      // The bfloat16 numbers that hold one in single precision.
constexpr int64_t SIDE = 16, TILE = SIDE * SIDE;  // A tile has 16 rows of 16 numbers, or of 16 pairs in bfloat16.
constexpr int64_t ROW_BYTES = 64;

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

// The output has `height` rows of `width` pixels. A row is computed in `parts` parts of `part` pixels each.
struct Output {
    int64_t height, width, parts, part;

    Output(const Convolutions& all, int64_t most, int64_t multiple)
        : height((all.height - SIZE) / STEP + 1),
          width((all.width - SIZE) / STEP + 1),
          parts((width + most - 1) / most),
          part(((width + parts - 1) / parts + multiple - 1) / multiple * multiple) {}
    int64_t numbers() const { return height * width * FILTERS; }
};

// A bfloat16 number is the upper half of one in single precision.
inline uint32_t upper_half(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits & 0xffff0000;
}

// Splits off the first part of a number.
inline uint32_t split(float& number) {
    const uint32_t bits = upper_half(number);
    float first;
    memcpy(&first, &bits, sizeof first);
    number -= first;
    return bits;
}

// Copies the bytes of the i-th selected image as (height, width, 4).
__attribute__((noinline)) void read(const Convolutions& all, int64_t i, uint8_t* __restrict bytes) {
    const int64_t size = all.height * all.width;
    const uint8_t* image = all.images + all.rows[i] * size * CHANNELS;
    if (!all.in_planes) {
        memcpy(bytes, image, size * CHANNELS);
        return;
    }
    for (int64_t pixel = 0; pixel < size; ++pixel)
        for (int64_t c = 0; c < CHANNELS; ++c) bytes[pixel * CHANNELS + c] = image[c * size + pixel];
}

// Converts the bytes of an image to bfloat16.
__attribute__((noinline)) void as_numbers(const uint8_t* bytes, int64_t size, uint16_t* __restrict numbers) {
    for (int64_t i = 0; i < size; ++i) numbers[i] = uint16_t(upper_half(bytes[i]) >> 16);
}

// Pairs each byte with the byte that lies at the same place in the patch of the next output pixel, as bfloat16.
__attribute__((noinline)) void as_pairs(const uint8_t* bytes, int64_t size, uint32_t* __restrict pairs) {
    for (int64_t i = 0; i < size; ++i) pairs[i] = upper_half(bytes[i]) >> 16 | upper_half(bytes[i + NEXT]);
}

// Propagates NaN.
__attribute__((noinline)) void relu(float* numbers, int64_t size) {
    for (int64_t i = 0; i < size; ++i) numbers[i] = numbers[i] < 0 ? 0.0f : numbers[i];
}

// Writes the parts of the weights as tiles. The indices are the row of the filters, the part, the half of the filters,
// the pair of weights, the filter, and the position in the pair.
__attribute__((noinline)) void weight_tiles(const float* weights, uint16_t* tiles) {
    for (int64_t filter = 0; filter < FILTERS; ++filter)
        for (int64_t i = 0; i < PATCH; ++i) {
            const int64_t y = i / PATCH_ROW, pair = i % PATCH_ROW / 2, half = filter / SIDE;
            float left = weights[filter * PATCH + i];
            for (int64_t part = 0; part < PARTS; ++part)
                tiles[((y * PARTS + part) * 2 + half) * 2 * TILE + (pair * SIDE + filter % SIDE) * 2 + i % 2] =
                    uint16_t(split(left) >> 16);
        }
}

// A part of the output, given by the beginning of its first patch and its first number.
struct Part {
    const uint16_t* patch;
    float* output;
};

inline void filter_two(Part a, Part b, int64_t row, const uint16_t* weights, const float* bias) {
    _tile_loadd(0, bias, 0);
    _tile_loadd(1, bias + SIDE, 0);
    _tile_loadd(2, bias, 0);
    _tile_loadd(3, bias + SIDE, 0);
    for (int64_t y = 0; y < SIZE; ++y) {
        _tile_loadd(4, a.patch + y * row, NEXT * 2);
        _tile_loadd(5, b.patch + y * row, NEXT * 2);
        for (int64_t part = 0; part < PARTS; ++part, weights += 4 * TILE) {
            _tile_loadd(6, weights, ROW_BYTES);
            _tile_loadd(7, weights + 2 * TILE, ROW_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, a.output, FILTERS * 4);
    _tile_stored(1, a.output + SIDE, FILTERS * 4);
    _tile_stored(2, b.output, FILTERS * 4);
    _tile_stored(3, b.output + SIDE, FILTERS * 4);
}

int64_t convolve(const Convolutions& all, void* memory) {
    const int64_t row = all.width * CHANNELS, size = all.height * row;
    const Output out(all, SIDE, 1);
    Memory pieces{static_cast<char*>(memory)};
    uint16_t* weights = pieces.take<uint16_t>(PARTS * FILTERS * PATCH);
    uint16_t* numbers = pieces.take<uint16_t>(size);
    uint8_t* bytes = pieces.take<uint8_t>(size);
    if (!memory) return pieces.used;
    Tiles tiles;
    tiles.set(0, 5, out.part, ROW_BYTES);
    tiles.set(6, 7, SIDE, ROW_BYTES);
    weight_tiles(all.layers->weight, weights);
    memory_is_read();
    _tile_loadconfig(&tiles);
    float* output = all.layers->output;
    for (int64_t i = 0; i < all.count; ++i, output += out.numbers()) {
        read(all, i, bytes);
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
            filter_two(part(n), part(n + 1 < n_parts ? n + 1 : n), row, weights, all.layers->bias);
        relu(output, out.numbers());
    }
    _tile_release();
    return pieces.used;
}

// Writes the gradient with respect to the input of ReLU, for 16 filters at up to 32 neighbouring pixels, as one tile
// per part with a row for each filter. Adds the sum over pixels to the gradient of the bias.
__attribute__((noinline)) void gradient_tiles(const float* output, const float* gradient, int64_t pixels,
                                              float* __restrict d_bias, uint32_t* tiles) {
    alignas(64) uint32_t parts[PARTS][TILE] = {};
    const auto before_relu = [&](int64_t i) { return output[i] <= 0 ? 0.0f : gradient[i]; };
    for (int64_t pixel = 0; pixel < pixels; pixel += 2, output += 2 * FILTERS, gradient += 2 * FILTERS) {
        const bool is_pair = pixel + 1 < pixels;
        for (int64_t filter = 0; filter < SIDE; ++filter) {
            float left = before_relu(filter), right = is_pair ? before_relu(FILTERS + filter) : 0.0f;
            d_bias[filter] += left + right;
            for (int64_t part = 0; part < PARTS; ++part)
                parts[part][pixel / 2 * SIDE + filter] = split(left) >> 16 | split(right);
        }
    }
    for (int64_t part = 0; part < PARTS; ++part)
        transpose_square(reinterpret_cast<const float*>(parts[part]), SIDE,
                         reinterpret_cast<float*>(tiles + part * 2 * TILE), SIDE);
}

// Computes the gradient of the weights in one row of the filters, for one image.
inline void gradient_of_row(const uint32_t* pairs, int64_t row, const uint32_t* tiles, const Output& out, float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t y = 0; y < out.height; ++y)
        for (int64_t n = 0; n < out.parts; ++n) {
            const uint32_t* at = pairs + y * STEP * row + n * out.part * NEXT;
            _tile_loadd(6, at, 2 * NEXT * 4);
            _tile_loadd(7, at + SIDE, 2 * NEXT * 4);
            for (int64_t part = 0; part < PARTS; ++part, tiles += 2 * TILE) {
                _tile_loadd(4, tiles, ROW_BYTES);
                _tile_loadd(5, tiles + TILE, ROW_BYTES);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    _tile_stored(0, sums, PATCH * 4);
    _tile_stored(1, sums + SIDE, PATCH * 4);
    _tile_stored(2, sums + SIDE * PATCH, PATCH * 4);
    _tile_stored(3, sums + SIDE * PATCH + SIDE, PATCH * 4);
}

int64_t convolve_backward(const Convolutions& all, void* memory) {
    const int64_t row = all.width * CHANNELS, size = all.height * row;
    const Output out(all, 2 * SIDE, 2);
    constexpr int64_t TILES = PARTS * 2 * TILE;  // The numbers for one part of the output.
    Memory pieces{static_cast<char*>(memory)};
    // Pixels that only pad a tile read beyond the image and contribute nothing.
    uint32_t* pairs = pieces.take<uint32_t>(size + 2 * SIDE * NEXT);
    uint8_t* bytes = pieces.take<uint8_t>(size + NEXT);
    uint32_t* tiles = pieces.take<uint32_t>(out.height * out.parts * TILES);
    float* sums = pieces.take<float>(FILTERS * PATCH);
    float* bias_sums = pieces.take<float>(FILTERS);
    if (!memory) return pieces.used;
    Tiles sizes;
    sizes.set(0, 3, SIDE, ROW_BYTES);
    sizes.set(4, 5, SIDE, out.part * 2);
    sizes.set(6, 7, out.part / 2, ROW_BYTES);
    memory_is_read();
    _tile_loadconfig(&sizes);
    const Convolution& layer = all.layers[0];
    const float *output = layer.output, *gradient = all.d_output;
    for (int64_t i = 0; i < all.count; ++i, output += out.numbers(), gradient += out.numbers()) {
        read(all, i, bytes);
        as_pairs(bytes, size, pairs);
        memset(bias_sums, 0, FILTERS * sizeof(float));
        for (int64_t y = 0; y < out.height; ++y)
            for (int64_t n = 0; n < out.parts; ++n) {
                const int64_t x = n * out.part, at = (y * out.width + x) * FILTERS;
                const int64_t pixels = x + out.part <= out.width ? out.part : out.width - x;
                for (int64_t half = 0; half < FILTERS; half += SIDE)
                    gradient_tiles(output + at + half, gradient + at + half, pixels, bias_sums + half,
                                   tiles + (y * out.parts + n) * TILES + half * SIDE);
            }
        memory_is_read();
        for (int64_t y = 0; y < SIZE; ++y) gradient_of_row(pairs + y * row, row, tiles, out, sums + y * PATCH_ROW);
        for (int64_t j = 0; j < FILTERS * PATCH; ++j) layer.d_weight[j] += sums[j];
        for (int64_t j = 0; j < FILTERS; ++j) layer.d_bias[j] += bias_sums[j];
    }
    _tile_release();
    return pieces.used;
}

}  // namespace
}  // namespace INSTRUCTIONS
END_TARGET

#else

namespace {

bool has_tiles() { return false; }

}  // namespace

namespace INSTRUCTIONS {
namespace {

int64_t convolve(const Convolutions&, void*) { return 0; }
int64_t convolve_backward(const Convolutions&, void*) { return 0; }

}  // namespace
}  // namespace INSTRUCTIONS

#endif

// Whether the processor supports the other two functions.
EXPORTED int64_t ppo_has_tiles() { return has_tiles(); }

// Computes the output of a single layer. As in `table.hpp`, the functions compute nothing without memory.
EXPORTED int64_t ppo_convolve_tiled(const Convolutions* all, void* memory) { return tiles::convolve(*all, memory); }

// Adds to the gradients with respect to weights and biases.
EXPORTED int64_t ppo_convolve_tiled_backward(const Convolutions* all, void* memory) {
    return tiles::convolve_backward(*all, memory);
}
