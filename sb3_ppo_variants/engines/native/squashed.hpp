// Distributions whose numbers are squashed to actions by tanh.
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// Where the mean of a function of a standard normal number is computed, and with which weights: the trapezoidal rule of
// distributions.py.
template <class T> struct Nodes {
    static constexpr int64_t COUNT = 32;
    T z[COUNT], weight[COUNT];

    Nodes() {
        constexpr double END = 6;
        double density[COUNT], total = 0;
        for (int64_t k = 0; k < COUNT; ++k) {
            const double at = -END + 2 * END * static_cast<double>(k) / (COUNT - 1);
            z[k] = static_cast<T>(at);
            total += density[k] = ::exp(-0.5 * at * at);
        }
        for (int64_t k = 0; k < COUNT; ++k) weight[k] = static_cast<T>(density[k] / total);
    }
};

// KLs are those of the distribution that is squashed. The entropy is its entropy plus the mean of log(1 - tanh(x)^2).
template <class T, class Inner> class Squashed {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = Inner::HAS_DEVIATIONS;

    Squashed(const Networks<T>& networks, const Mlp<T>& actor, Memory& memory)
        : inner(networks, actor, memory), size(networks.parts[0]), numbers{memory.take<T>(size * STRIDE)},
          drawn(memory.take<T>(size)) {}

    void begin() { inner.begin(); }
    void begin_kl(const T* old) { inner.begin_kl(old); }
    void end(const Target<T>& target) { inner.end(target); }
    int64_t n_deviations() const { return inner.n_deviations(); }
    T deviation(int64_t state, int64_t dimension) const { return inner.deviation(state, dimension); }

    void evaluate(ByState<const T> outputs, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) numbers[i][s] = unsquash(actions[i][s]);
        inner.evaluate(outputs, numbers, old, states, all);
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) all.log_prob[s] -= log_slope(numbers[i][s]);
        means = outputs;
        for (int64_t i = 0; i < size; ++i) add_mean_log_slope(i, states, all.entropy);
    }

    void gradient(ByState<T> d_outputs, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        inner.gradient(d_outputs, numbers, old, states, d);
        for (int64_t i = 0; d.entropy && i < size; ++i) add_entropy_slopes(i, states, d.entropy, d_outputs);
    }

    void prepare(ByState<const T> outputs, int64_t states) { inner.prepare(outputs, states); }

    // The log-probability is that of the rounded action, which an update will see.
    T sample(int64_t state, const T* noise, T* action) const {
        inner.sample(state, noise, action);
        T log_slopes = 0;
        for (int64_t i = 0; i < size; ++i) {
            action[i] = squash(action[i]);
            drawn[i] = unsquash(action[i]);
            log_slopes += log_slope(drawn[i]);
        }
        return inner.log_prob(state, drawn) - log_slopes;
    }

  private:
    Inner inner;
    int64_t size;
    ByState<T> numbers;
    T* drawn;
    Nodes<T> nodes;
    ByState<const T> means = {};

    // The logarithm of the derivative of tanh.
    static T log_slope(T x) { return 2 * (T(0.69314718055994530942) - x - softplus(-2 * x)); }

    void copy_deviations(int64_t i, int64_t states, T* to) const {
        for (int64_t s = 0; s < states; ++s) to[s] = inner.deviation(s, i);
    }

    // Adds the mean of the logarithm of the derivative of tanh, 2 (log(2) - |x| - log(1 + e^(-2 |x|))).
    void add_mean_log_slope(int64_t i, int64_t states, T* __restrict to) const {
        const T* mean = means[i];
        T deviations[STATES], sums[STATES] = {};
        copy_deviations(i, states, deviations);
        for (int64_t k = 0; k < Nodes<T>::COUNT; ++k) {
            const T z = nodes.z[k], weight = nodes.weight[k];
            for (int64_t s = 0; s < states; ++s) {
                const T distance = ::fabs(mean[s] + deviations[s] * z);
                sums[s] += weight * (distance + log1p_of_share(exp_of(-2 * distance)));
            }
        }
        for (int64_t s = 0; s < states; ++s) to[s] += 2 * (T(0.69314718055994530942) - sums[s]);
    }

    // Adds what the loss depends on mean and standard deviation through it: the derivative is -2 tanh(x).
    void add_entropy_slopes(int64_t i, int64_t states, const T* d_entropy, ByState<T> d_outputs) {
        const T* mean = means[i];
        T deviations[STATES], of_mean[STATES] = {}, of_log_std[STATES] = {};
        copy_deviations(i, states, deviations);
        for (int64_t k = 0; k < Nodes<T>::COUNT; ++k) {
            const T z = nodes.z[k], weight = -2 * nodes.weight[k];
            for (int64_t s = 0; s < states; ++s) {
                const T x = mean[s] + deviations[s] * z, less = exp_of(-2 * ::fabs(x));
                const T size = (1 - less) / (1 + less), slope = weight * (x < 0 ? -size : size);
                of_mean[s] += slope;
                of_log_std[s] += slope * deviations[s] * z;
            }
        }
        for (int64_t s = 0; s < states; ++s) {
            d_outputs[i][s] += d_entropy[s] * of_mean[s];
            inner.add_to_log_std(d_outputs, s, i, d_entropy[s] * of_log_std[s]);
        }
    }
};

}  // namespace INSTRUCTIONS
