// Multilayer perceptrons, forward and backward, for some rows of a rollout at a time.
//
// Internal matrices have a row for each feature and a column for each state, so that a layer's weight can be read as it
// is stored in both directions.
#pragma once

#include "functions.hpp"
#include "interface.hpp"
#include "matrix.hpp"

namespace INSTRUCTIONS {

// States at a time: few enough for everything that is computed from them to stay in the cache.
constexpr int64_t STATES = 128;
constexpr int64_t STRIDE = stride_of(STATES);
// Up to this many states are cheaper one by one, if no gradients are needed.
constexpr int64_t FEW = 2;

// Features of states, stored by state and, once they are arranged, by feature.
template <class T> struct Inputs {
    int64_t width, states = 0, columns = 0;
    T *by_state, *by_feature;

    Inputs(int64_t width, Memory& memory)
        : width(width),
          // Networks read whole vectors, and may begin at any feature of the last state.
          by_state(memory.take<T>(STATES * stride_of(width) + PADDING)),
          by_feature(memory.take<T>(width * STRIDE)) {}

    // Copies the features of `count` rows, the first ones if `indices` is null, but only by state.
    void gather(const T* features, const int64_t* indices, int64_t count) {
        states = count;
        columns = padded(count);
        for (int64_t i = 0; i < count; ++i)
            memcpy(by_state + i * stride_of(width), features + (indices ? indices[i] : i) * width, width * sizeof(T));
    }

    // Copies the gathered features by feature, as `forward` and `backward` need them.
    void arrange() {
        const int64_t row = stride_of(width);
        for (int64_t i = states; i < columns; ++i) memset(by_state + i * row, 0, width * sizeof(T));
        transpose(by_state, row, columns, width, by_feature, STRIDE);
    }
};

// y = W x + b for one state, with contiguous x and y.
template <class T> void apply(const Layer<T>& layer, const T* x, T* y) {
    constexpr int64_t AT_ONCE = 4;
    for (int64_t first = 0; first < layer.outputs; first += AT_ONCE) {
        const int64_t count = layer.outputs - first < AT_ONCE ? layer.outputs - first : AT_ONCE;
        const T* weights[AT_ONCE];
        Vector<T> sums[AT_ONCE] = {};
        // If fewer rows are left, the last one is computed several times.
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

// Where gradients go: the parts of a vector like the one that the layers point to.
template <class T> struct Target {
    const T* origin;  // The vector that the layers point to.
    T* gradient;
    bool add;  // Whether gradients are added to those that are there.

    T* of(const T* part) const { return gradient + (part - origin); }
};

// A network that takes the features from `first` on.
template <class T> class Mlp {
  public:
    Mlp(const Layer<T>* layers, int64_t count, int64_t activation, int64_t first, Memory& memory)
        : layers(layers), count(count), activation(activation), first(first) {
        int64_t total = 0, widest = 0;
        for (int64_t i = 0; i < count; ++i) {
            total += layers[i].outputs;
            widest = layers[i].outputs > widest ? layers[i].outputs : widest;
        }
        outputs = memory.take<T>(total * STRIDE);
        transposed = memory.take<T>(STATES * stride_of(widest));
        for (T*& d : gradients) d = memory.take<T>(widest * STRIDE);
    }

    // Returns the output of the last layer. Those of the other layers may not be kept. More than a few states must be
    // arranged.
    T* evaluate(const Inputs<T>& inputs) {
        if (inputs.states > FEW) return forward(inputs);
        for (int64_t state = 0; state < inputs.states; ++state) {
            const T* x = inputs.by_state + state * stride_of(inputs.width) + first;
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

    // Returns the output of the last layer, and keeps those of all layers for `backward`.
    T* forward(const Inputs<T>& inputs) {
        const T* x = inputs.by_feature + first * STRIDE;
        T* y = nullptr;
        for (int64_t i = 0; i < count; ++i) {
            const Layer<T>& layer = layers[i];
            y = output(i);
            latent = x;
            multiply<T>({layer.weight, layer.inputs, 1, x, STRIDE, y, STRIDE, layer.outputs, inputs.columns,
                         layer.inputs, layer.bias});
            if (i + 1 < count)
                for (int64_t row = 0; row < layer.outputs; ++row)
                    activate(activation, y + row * STRIDE, inputs.columns);
            x = y;
        }
        return y;
    }

    // The output of the last hidden layer, or the features if there is none, once `forward` has computed it.
    const T* last_hidden() const { return latent; }

    // The array to fill with dL/d(output) before `backward`.
    T* d_output() { return gradients[0]; }

    // Writes the gradients of all layers.
    void backward(const Inputs<T>& inputs, const Target<T>& target) {
        int current = 0;
        for (int64_t i = count - 1; i >= 0; --i) {
            const Layer<T>& layer = layers[i];
            T* d = gradients[current];
            if (i + 1 < count)
                for (int64_t row = 0; row < layer.outputs; ++row)
                    chain(activation, d + row * STRIDE, output(i) + row * STRIDE, inputs.columns);
            parameter_gradients(i, d, inputs, target);
            if (i > 0)
                multiply<T>({layer.weight, 1, layer.inputs, d, STRIDE, gradients[1 - current], STRIDE, layer.inputs,
                             inputs.columns, layer.outputs});
            current = 1 - current;
        }
    }

  private:
    const Layer<T>* layers;
    int64_t count, activation, first;
    T *outputs, *transposed, *gradients[2];
    const T* latent = nullptr;

    T* output(int64_t layer) const {
        T* at = outputs;
        for (int64_t i = 0; i < layer; ++i) at += layers[i].outputs * STRIDE;
        return at;
    }

    void parameter_gradients(int64_t i, const T* d, const Inputs<T>& inputs, const Target<T>& target) {
        const Layer<T>& layer = layers[i];
        const int64_t row = stride_of(i > 0 ? layer.inputs : inputs.width);
        if (i > 0) transpose(output(i - 1), STRIDE, layer.inputs, inputs.columns, transposed, row);
        multiply<T>({d, STRIDE, 1, i > 0 ? transposed : inputs.by_state + first, row,
                     target.of(layer.d_weight), layer.inputs, layer.outputs, layer.inputs, inputs.states, nullptr,
                     target.add});
        T* d_bias = target.of(layer.d_bias);
        for (int64_t o = 0; o < layer.outputs; ++o) {
            const T sum = sum_of(d + o * STRIDE, inputs.columns);
            d_bias[o] = target.add ? d_bias[o] + sum : sum;
        }
    }
};

}  // namespace INSTRUCTIONS
