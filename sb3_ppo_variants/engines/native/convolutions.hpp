// Convolutions of images of bytes without padding, each followed by ReLU, forward and backward. One image passes
// through all layers before the next, so that most of what a layer reads is still in the cache.
//
// Images are (height, width, channels), filters (size, size, channels), and outputs (height, width, filters). As in
// matrix products, blocks of the result stay in registers: some rows, each two vectors wide.
#pragma once

#include "interface.hpp"
#include "matrix.hpp"

namespace INSTRUCTIONS {

// The numbers in two vectors. The number of filters must be a multiple of it.
constexpr int64_t WIDE = 2 * LANES<float>;
// The most neighbouring pixels of the output at a time.
constexpr int MOST_PIXELS = VECTOR_BYTES == 64 ? 10 : 5;
// Pixels of the output whose slopes stay in the cache.
constexpr int64_t CACHED_PIXELS = 128;

// A patch is the part of the image that a filter covers for one pixel of the output. Its rows are contiguous.
struct Sizes {
    int64_t height, width, channels, filters, size, step;

    int64_t row() const { return width * channels; }
    int64_t numbers() const { return height * row(); }
    int64_t patch_row() const { return size * channels; }
    int64_t patch() const { return size * patch_row(); }
    int64_t next_patch() const { return step * channels; }
    int64_t out_height() const { return (height - size) / step + 1; }
    int64_t out_width() const { return (width - size) / step + 1; }
    int64_t outputs() const { return out_height() * out_width() * filters; }
    // The size of the widest block that fits into a row of the output about evenly.
    int64_t pixels_at_once() const {
        const int64_t blocks = (out_width() + MOST_PIXELS - 1) / MOST_PIXELS;
        return (out_width() + blocks - 1) / blocks;
    }
};

template <int M> using Block = Vector<float>[M][2];

// Adds products of M numbers and two vectors. Two pointers, each with half of the rows, need fewer registers.
template <int M>
inline void add_products(const float* a, const float* lower, int64_t a_row, const float* b, Block<M>& sums) {
    constexpr int HALF = (M + 1) / 2;
    const Vector<float> left = load(b), right = load(b + LANES<float>);
    UNROLLED for (int m = 0; m < HALF; ++m) {
        const Vector<float> number = broadcast(a[m * a_row]);
        sums[m][0] += number * left;
        sums[m][1] += number * right;
    }
    UNROLLED for (int m = HALF; m < M; ++m) {
        const Vector<float> number = broadcast(lower[(m - HALF) * a_row]);
        sums[m][0] += number * left;
        sums[m][1] += number * right;
    }
}

// Adds the product of M rows and a matrix two vectors wide.
template <int M>
inline void add_product(const float* a, int64_t a_row, int64_t depth, const float* b, int64_t b_row, Block<M>& sums) {
    const float* lower = a + (M + 1) / 2 * a_row;
    for (int64_t k = 0; k < depth; ++k, ++a, ++lower, b += b_row) add_products<M>(a, lower, a_row, b, sums);
}

inline void add_to(float* numbers, const Vector<float>& values) {
    Vector<float> sum = load(numbers);
    sum += values;
    store(sum, numbers);
}

// Calls the function with the beginning of every block of M pixels in a row of the output. The last block may begin
// before the end of the one before, by the second argument.
template <int M, class Function> inline void in_blocks(int64_t width, Function&& function) {
    for (int64_t left = 0; left < width; left += M) {
        const int64_t x = left + M <= width ? left : width - M;
        function(x, left - x);
    }
}

// Computes the output and ReLU of it. The weights are (patch, filters).
template <int M>
void convolve(const Sizes& s, const float* image, const float* weights, const float* bias, float* output) {
    for (int64_t row = 0; row < s.out_height(); ++row)
        in_blocks<M>(s.out_width(), [&](int64_t x, int64_t) {
            const float* patches = image + row * s.step * s.row() + x * s.next_patch();
            float* to = output + (row * s.out_width() + x) * s.filters;
            for (int64_t f = 0; f < s.filters; f += WIDE) {
                Block<M> sums;
                UNROLLED for (int m = 0; m < M; ++m)
                    for (int n = 0; n < 2; ++n) sums[m][n] = load(bias + f + n * LANES<float>);
                for (int64_t y = 0; y < s.size; ++y)
                    add_product<M>(patches + y * s.row(), s.next_patch(), s.patch_row(),
                                   weights + y * s.patch_row() * s.filters + f, s.filters, sums);
                UNROLLED for (int m = 0; m < M; ++m)
                    for (int n = 0; n < 2; ++n) store(sums[m][n], to + m * s.filters + f + n * LANES<float>);
            }
            for (int64_t i = 0; i < M * s.filters; ++i) to[i] = to[i] < 0 ? 0.0f : to[i];
        });
}

// Adds to the gradient with respect to the image. The weights are (filters, patch).
template <int M> void add_image_gradient(const Sizes& s, const float* slopes, const float* weights, float* d_image) {
    for (int64_t row = 0; row < s.out_height(); ++row)
        in_blocks<M>(s.out_width(), [&](int64_t x, int64_t done) {
            const float* from = slopes + (row * s.out_width() + x) * s.filters;
            float* patches = d_image + row * s.step * s.row() + x * s.next_patch();
            for (int64_t y = 0; y < s.size; ++y)
                for (int64_t k = 0; k < s.patch_row(); k += WIDE) {
                    Block<M> sums = {};
                    add_product<M>(from, s.filters, s.filters, weights + y * s.patch_row() + k, s.patch(), sums);
                    for (int64_t m = done; m < M; ++m)
                        for (int n = 0; n < 2; ++n)
                            add_to(patches + m * s.next_patch() + y * s.row() + k + n * LANES<float>, sums[m][n]);
                }
        });
}

// Adds to the gradient with respect to the weights, (patch, filters).
inline void add_weight_gradient(const Sizes& s, const float* image, const float* slopes, float* d_weights) {
    constexpr int M = BLOCK_ROWS;
    const int64_t wanted = CACHED_PIXELS / s.out_width(), rows = wanted ? wanted : 1;
    for (int64_t top = 0; top < s.out_height(); top += rows)
        for (int64_t y = 0; y < s.size; ++y)
            for (int64_t k = 0; k < s.patch_row(); k += M)
                for (int64_t f = 0; f < s.filters; f += WIDE) {
                    Block<M> sums = {};
                    const float* slope = slopes + top * s.out_width() * s.filters + f;
                    for (int64_t row = top; row < top + rows && row < s.out_height(); ++row) {
                        const float* a = image + (row * s.step + y) * s.row() + k;
                        for (int64_t x = 0; x < s.out_width(); ++x, a += s.next_patch(), slope += s.filters)
                            add_products<M>(a, a + (M + 1) / 2, 1, slope, sums);
                    }
                    float* to = d_weights + (y * s.patch_row() + k) * s.filters + f;
                    UNROLLED for (int m = 0; m < M; ++m)
                        for (int n = 0; n < 2; ++n) add_to(to + m * s.filters + n * LANES<float>, sums[m][n]);
                }
}

typedef void (*Convolve)(const Sizes&, const float*, const float*, const float*, float*);
typedef void (*AddImageGradient)(const Sizes&, const float*, const float*, float*);

// Return the function for a number of pixels at once.
template <int... M> inline Convolve convolve_for(int64_t pixels, std::integer_sequence<int, M...>) {
    constexpr Convolve functions[] = {convolve<M + 1>...};
    return functions[pixels - 1];
}

template <int... M> inline AddImageGradient image_gradient_for(int64_t pixels, std::integer_sequence<int, M...>) {
    constexpr AddImageGradient functions[] = {add_image_gradient<M + 1>...};
    return functions[pixels - 1];
}

// Computes the outputs of all layers.
class ForwardPass {
  public:
    ForwardPass(const Convolutions& all, Memory& memory) : all(all), sizes(memory.take<Sizes>(all.n_layers)) {
        Sizes in{all.height, all.width, all.channels, 0, 0, 0};
        image = memory.take<float>(in.numbers());
        for (int i = 0; i < 256; ++i) scaled[i] = static_cast<float>(i) / 255.0f;
        transposed = memory.take<float*>(all.n_layers);
        for (int64_t i = 0; i < all.n_layers; ++i) {
            in.filters = all.layers[i].filters;
            in.size = all.layers[i].size;
            in.step = all.layers[i].step;
            float* weights = memory.take<float>(in.patch() * in.filters);
            largest = in.outputs() > largest ? in.outputs() : largest;
            if (memory.base) {
                sizes[i] = in;
                transposed[i] = weights;
            }
            in = {in.out_height(), in.out_width(), in.filters, 0, 0, 0};
        }
    }

    void run() {
        for (int64_t i = 0; i < all.n_layers; ++i) {
            const Sizes& s = sizes[i];
            transpose(all.layers[i].weight, s.patch(), s.filters, s.patch(), transposed[i], s.filters);
        }
        for (int64_t n = 0; n < all.count; ++n) {
            const float* from = read(n);
            for (int64_t i = 0; i < all.n_layers; ++i) {
                const Convolve compute = convolve_for(sizes[i].pixels_at_once(), Counted());
                compute(sizes[i], from, transposed[i], all.layers[i].bias, output(i, n));
                from = output(i, n);
            }
        }
    }

  protected:
    using Counted = std::make_integer_sequence<int, MOST_PIXELS>;

    const Convolutions& all;
    Sizes* sizes;
    float *image, **transposed;
    int64_t largest = 0;
    float scaled[256];

    float* output(int64_t layer, int64_t n) const { return all.layers[layer].output + n * sizes[layer].outputs(); }

    // Returns the n-th image, scaled to [0, 1], with the channels of a pixel side by side.
    const float* read(int64_t n) {
        const int64_t size = all.height * all.width * all.channels / all.planes;
        const uint8_t* bytes = all.images + n * size * all.planes;
        for (int64_t plane = 0; plane < all.planes; ++plane, bytes += size)
            for (int64_t i = 0; i < size; ++i) image[i * all.planes + plane] = scaled[bytes[i]];
        return image;
    }
};

// Computes the gradients with respect to all weights and biases, after a forward pass through the same layers.
class BackwardPass : private ForwardPass {
  public:
    BackwardPass(const Convolutions& all, Memory& memory)
        : ForwardPass(all, memory), slopes(memory.take<float>(largest)), d_image(memory.take<float>(largest)) {}

    void run() {
        for (int64_t i = 0; i < all.n_layers; ++i) {
            memset(transposed[i], 0, sizes[i].patch() * sizes[i].filters * sizeof(float));
            memset(all.layers[i].d_bias, 0, sizes[i].filters * sizeof(float));
        }
        for (int64_t n = 0; n < all.count; ++n) {
            read(n);
            const float* d_output = all.d_output + n * sizes[all.n_layers - 1].outputs();
            for (int64_t i = all.n_layers - 1; i >= 0; --i) d_output = backward(i, n, d_output);
        }
        for (int64_t i = 0; i < all.n_layers; ++i) {
            const Sizes& s = sizes[i];
            transpose(transposed[i], s.filters, s.patch(), s.filters, all.layers[i].d_weight, s.patch());
        }
    }

  private:
    float *slopes, *d_image;

    // Returns the gradient with respect to the output of the layer before.
    const float* backward(int64_t i, int64_t n, const float* d_output) {
        const Sizes& s = sizes[i];
        const float* out = output(i, n);
        for (int64_t j = 0; j < s.outputs(); ++j) slopes[j] = out[j] <= 0 ? 0.0f : d_output[j];
        float* d_bias = all.layers[i].d_bias;
        for (int64_t at = 0; at < s.outputs(); at += s.filters)
            for (int64_t f = 0; f < s.filters; ++f) d_bias[f] += slopes[at + f];
        add_weight_gradient(s, i > 0 ? output(i - 1, n) : image, slopes, transposed[i]);
        if (i == 0) return nullptr;
        memset(d_image, 0, s.numbers() * sizeof(float));
        image_gradient_for(s.pixels_at_once(), Counted())(s, slopes, all.layers[i].weight, d_image);
        return d_image;
    }
};

}  // namespace INSTRUCTIONS
