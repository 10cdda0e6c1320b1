// Convolutions of images of bytes, each followed by ReLU. One image passes through all layers before the next, so that
// most of what a layer reads is still in the cache.
namespace INSTRUCTIONS {

class Convolved {
  public:
    Convolved(const Convolutions& all, Memory& memory) : all(all), sizes(memory.take<Sizes>(all.n_layers)) {
        Sizes in{all.height, all.width, all.channels, 0, 0, 0};
        image = memory.take<float>(in.numbers());
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

    void forward() {
        for (int64_t i = 0; i < all.n_layers; ++i) {
            const Sizes& s = sizes[i];
            transpose(all.layers[i].weight, s.patch(), s.filters, s.patch(), transposed[i], s.filters);
        }
        for (int64_t n = 0; n < all.count; ++n) {
            const float* from = read(n);
            for (int64_t i = 0; i < all.n_layers; ++i) {
                const auto with = convolve_for(sizes[i].pixels_at_once(), Counted());
                with(sizes[i], from, transposed[i], all.layers[i].bias, output(i, n));
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

    float* output(int64_t layer, int64_t n) const { return all.layers[layer].output + n * sizes[layer].outputs(); }

    // Returns the n-th of the selected images, scaled to [0, 1].
    const float* read(int64_t n) {
        const int64_t size = all.height * all.width * all.channels;
        const uint8_t* bytes = all.images + all.rows[n] * size;
        for (int64_t i = 0; i < size; ++i) image[i] = static_cast<float>(bytes[i]) / 255.0f;
        return image;
    }
};

// The gradients with respect to all weights and biases, after `forward` with the same layers.
class ConvolvedBackward : private Convolved {
  public:
    ConvolvedBackward(const Convolutions& all, Memory& memory)
        : Convolved(all, memory), slopes(memory.take<float>(largest)), d_image(memory.take<float>(largest)) {}

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
