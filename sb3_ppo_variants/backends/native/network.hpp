// Multilayer perceptrons, forward and backward, for some rows of a rollout at a time.
//
// Within them a matrix has a row for each feature and a column for each state, so that a layer's weight can be read as
// it is in each direction.
namespace INSTRUCTIONS {

// States at a time: few enough for what is computed of them to stay in the cache.
constexpr int64_t STATES = 128;
constexpr int64_t STRIDE = stride_of(STATES);
// So few are cheaper one by one, if nothing is learned of them.
constexpr int64_t FEW = 2;

// An odd polynomial over an even one that differ from tanh by 2e-8 of it, before rounding (a fit by least squares,
// weighted towards the largest errors). Where they end, tanh is 1 in single precision.
inline float tanh_of(float x) {
    constexpr float END = 9.02f;
    x = x > END ? END : x;
    x = x < -END ? -END : x;
    const float u = x * x;
    float p = 1.33210875733e-8f, q = 7.76311259121e-7f;
    p = p * u + 2.05858647027e-5f;
    p = p * u + 3.49422349995e-3f;
    p = p * u + 1.33798931122e-1f;
    p = p * u + 9.99999980699e-1f;
    q = q * u + 3.2833699893e-4f;
    q = q * u + 2.58718410103e-2f;
    q = q * u + 4.6713209208e-1f;
    q = q * u + 1.0f;
    const float y = x * p / q;
    return y > 1 ? 1 : y < -1 ? -1 : y;
}

inline double tanh_of(double x) { return ::tanh(x); }

// NaN stays NaN in all of these.
template <class T> void activate(int64_t activation, T* z, int64_t count) {
    if (activation == TANH)
        for (int64_t i = 0; i < count; ++i) z[i] = tanh_of(z[i]);
    else
        for (int64_t i = 0; i < count; ++i) z[i] = z[i] < 0 ? T(0) : z[i];
}

// Makes dL/dz of d = dL/df(z), given h = f(z).
template <class T> void chain(int64_t activation, T* __restrict d, const T* __restrict h, int64_t count) {
    if (activation == TANH)
        for (int64_t i = 0; i < count; ++i) d[i] *= 1 - h[i] * h[i];
    else
        for (int64_t i = 0; i < count; ++i) d[i] *= h[i] > 0 ? T(1) : T(0);
}

// Features of states, by state and by feature.
template <class T> struct Inputs {
    int64_t width, states = 0, columns = 0;
    T *by_state, *by_feature;

    Inputs(int64_t width, Memory& memory)
        : width(width),
          by_state(memory.take<T>(STATES * stride_of(width))),
          by_feature(memory.take<T>(width * STRIDE)) {}

    // Takes the features of `count` rows; without indices, the first.
    void gather(const T* features, const int64_t* indices, int64_t count) {
        states = count;
        columns = padded(count);
        const int64_t row = stride_of(width);
        for (int64_t i = 0; i < columns; ++i) {
            T* to = by_state + i * row;
            if (i < count)
                memcpy(to, features + (indices ? indices[i] : i) * width, width * sizeof(T));
            else
                memset(to, 0, width * sizeof(T));
        }
        transpose(by_state, row, columns, width, by_feature, STRIDE);
    }
};

// y = W x + b for one state, whose numbers lie side by side.
template <class T> void apply(const Layer<T>& layer, const T* x, T* y) {
    constexpr int64_t AT_ONCE = 4;
    for (int64_t first = 0; first < layer.outputs; first += AT_ONCE) {
        const int64_t count = layer.outputs - first < AT_ONCE ? layer.outputs - first : AT_ONCE;
        const T* weights[AT_ONCE];
        Vector<T> sums[AT_ONCE] = {};
        // Of fewer rows than that, the last is computed several times.
        for (int64_t i = 0; i < AT_ONCE; ++i)
            weights[i] = layer.weight + (first + (i < count ? i : count - 1)) * layer.inputs;
        int64_t k = 0;
        for (; k + LANES<T> <= layer.inputs; k += LANES<T>) {
            const Vector<T> right = load(x + k);
            for (int64_t i = 0; i < AT_ONCE; ++i) sums[i] += load(weights[i] + k) * right;
        }
        for (int64_t i = 0; i < count; ++i) {
            T total = layer.bias[first + i] + sum<T>(sums[i]);
            for (int64_t rest = k; rest < layer.inputs; ++rest) total += weights[i][rest] * x[rest];
            y[first + i] = total;
        }
    }
}

template <class T> class Mlp {
  public:
    Mlp(const Layer<T>* layers, int64_t count, int64_t activation, Memory& memory)
        : layers(layers), count(count), activation(activation) {
        int64_t total = 0, widest = 0;
        for (int64_t i = 0; i < count; ++i) {
            total += layers[i].outputs;
            widest = layers[i].outputs > widest ? layers[i].outputs : widest;
        }
        outputs = memory.take<T>(total * STRIDE);
        transposed = memory.take<T>(STATES * stride_of(widest));
        for (T*& d : gradients) d = memory.take<T>(widest * STRIDE);
    }

    // The output of the last layer alone.
    const T* evaluate(const Inputs<T>& inputs) {
        if (inputs.states > FEW) return forward(inputs);
        for (int64_t state = 0; state < inputs.states; ++state) {
            const T* x = inputs.by_state + state * stride_of(inputs.width);
            for (int64_t i = 0; i < count; ++i) {
                T* y = gradients[i % 2];
                apply(layers[i], x, y);
                if (i + 1 < count) activate(activation, y, layers[i].outputs);
                x = y;
            }
            for (int64_t i = 0; i < layers[count - 1].outputs; ++i) output(count - 1)[i * STRIDE + state] = x[i];
        }
        return output(count - 1);
    }

    // The output of the last layer; those of all layers are kept.
    const T* forward(const Inputs<T>& inputs) {
        const T* x = inputs.by_feature;
        for (int64_t i = 0; i < count; ++i) {
            const Layer<T>& layer = layers[i];
            T* y = output(i);
            multiply<T>({layer.weight, layer.inputs, 1, x, STRIDE, y, STRIDE, layer.outputs, inputs.columns,
                         layer.inputs, layer.bias});
            if (i + 1 < count)
                for (int64_t row = 0; row < layer.outputs; ++row)
                    activate(activation, y + row * STRIDE, inputs.columns);
            x = y;
        }
        return x;
    }

    // Where dL/d(output) is to be written before `backward`.
    T* d_output() { return gradients[0]; }

    // Writes the gradients of all layers, or adds to them.
    void backward(const Inputs<T>& inputs, bool add) {
        int current = 0;
        for (int64_t i = count - 1; i >= 0; --i) {
            const Layer<T>& layer = layers[i];
            T* d = gradients[current];
            if (i + 1 < count)
                for (int64_t row = 0; row < layer.outputs; ++row)
                    chain(activation, d + row * STRIDE, output(i) + row * STRIDE, inputs.columns);
            parameter_gradients(i, d, inputs, add);
            if (i > 0)
                multiply<T>({layer.weight, 1, layer.inputs, d, STRIDE, gradients[1 - current], STRIDE, layer.inputs,
                             inputs.columns, layer.outputs});
            current = 1 - current;
        }
    }

  private:
    const Layer<T>* layers;
    int64_t count, activation;
    T *outputs, *transposed, *gradients[2];

    T* output(int64_t layer) const {
        T* at = outputs;
        for (int64_t i = 0; i < layer; ++i) at += layers[i].outputs * STRIDE;
        return at;
    }

    void parameter_gradients(int64_t i, const T* d, const Inputs<T>& inputs, bool add) {
        const Layer<T>& layer = layers[i];
        const int64_t row = stride_of(layer.inputs);
        if (i > 0) transpose(output(i - 1), STRIDE, layer.inputs, inputs.columns, transposed, row);
        multiply<T>({d, STRIDE, 1, i > 0 ? transposed : inputs.by_state, row, layer.d_weight, layer.inputs,
                     layer.outputs, layer.inputs, inputs.states, nullptr, add});
        for (int64_t o = 0; o < layer.outputs; ++o) {
            const T sum = sum_of(d + o * STRIDE, inputs.columns);
            layer.d_bias[o] = add ? layer.d_bias[o] + sum : sum;
        }
    }
};

}  // namespace INSTRUCTIONS
