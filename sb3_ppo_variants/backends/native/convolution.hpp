// A convolution of one image without padding, forward and backward. Images are (height, width, channels), filters (size,
// size, channels), and outputs (height, width, filters).
//
// As in matrix products, blocks of the result stay in registers: some rows, each two vectors wide.
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

}  // namespace INSTRUCTIONS
