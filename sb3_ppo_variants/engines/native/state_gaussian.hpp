// Normal distributions whose standard deviations depend on the state.
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// The outputs are all means, then the logarithms of all standard deviations.
template <class T> class StateGaussian : public WithoutParameters<T> {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = false;

    StateGaussian(const Networks<T>& networks, const Mlp<T>&, Memory& memory)
        : size(networks.parts[0]), deviations{memory.take<T>(size * STRIDE)}, z{memory.take<T>(size * STRIDE)},
          shift{memory.take<T>(size * STRIDE)}, variance_ratio{memory.take<T>(size * STRIDE)} {}

    void evaluate(ByState<const T> outputs, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        for (int64_t i = 0; i < size; ++i) {
            const T *mean = outputs[i], *log_std = outputs[size + i], *action = actions[i];
            T *__restrict deviation = deviations[i], *__restrict distance = z[i];
            for (int64_t s = 0; s < states; ++s) {
                deviation[s] = exp_of(log_std[s]);
                distance[s] = (action[s] - mean[s]) / deviation[s];
                all.log_prob[s] -= T(0.5) * distance[s] * distance[s] + log_std[s] + HALF_LOG_2_PI<T>;
                all.entropy[s] += log_std[s] + HALF_LOG_2_PI<T> + T(0.5);
            }
            if (old) add_kl(mean, old[i], old[size + i], i, states, all);
        }
    }

    void gradient(ByState<T> d_outputs, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i) {
            T *__restrict d_mean = d_outputs[i], *__restrict d_log = d_outputs[size + i];
            const T *distance = z[i], *moved = shift[i], *ratio = variance_ratio[i], *deviation = deviations[i];
            for (int64_t s = 0; s < states; ++s) {
                d_mean[s] = d.log_prob[s] * distance[s];
                d_log[s] = d.log_prob[s] * (distance[s] * distance[s] - 1);
            }
            for (int64_t s = 0; d.entropy && s < states; ++s) d_log[s] += d.entropy[s];
            for (int64_t s = 0; old && d.kl && s < states; ++s) {
                d_mean[s] += d.kl[s] * moved[s];
                d_log[s] += d.kl[s] * (1 - ratio[s] - moved[s] * moved[s]);
            }
            for (int64_t s = 0; old && d.reverse_kl && s < states; ++s) {
                d_mean[s] += d.reverse_kl[s] * moved[s] / ratio[s];
                d_log[s] += d.reverse_kl[s] * (1 / ratio[s] - 1);
            }
            for (int64_t s = 0; s < states; ++s) d_mean[s] /= deviation[s];
        }
    }

    // Adds dL/d of the logarithm of a standard deviation in a state, after `gradient`.
    void add_to_log_std(ByState<T> d_outputs, int64_t state, int64_t dimension, T slope) {
        d_outputs[size + dimension][state] += slope;
    }

    // The standard deviation in a state that `evaluate` was called for last.
    T deviation(int64_t state, int64_t dimension) const { return deviations[dimension][state]; }

    void prepare(ByState<const T> outputs, int64_t) { drawn_from = outputs; }

    T sample(int64_t state, const T* noise, T* action) const {
        for (int64_t i = 0; i < size; ++i)
            action[i] = drawn_from[i][state] + exp_of(drawn_from[size + i][state]) * noise[i];
        return log_prob(state, action);
    }

    // The log-probability of numbers in a state that `prepare` was called for.
    T log_prob(int64_t state, const T* numbers) const {
        T log_prob = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T log_std = drawn_from[size + i][state];
            const T distance = (numbers[i] - drawn_from[i][state]) / exp_of(log_std);
            log_prob -= T(0.5) * distance * distance + log_std + HALF_LOG_2_PI<T>;
        }
        return log_prob;
    }

  private:
    int64_t size;
    ByState<T> deviations, z, shift, variance_ratio;
    ByState<const T> drawn_from = {};

    void add_kl(const T* mean, const T* old_mean, const T* old_deviation, int64_t i, int64_t states,
                const Evaluation<T>& all) {
        T *__restrict moved = shift[i], *__restrict squared = variance_ratio[i];
        const T* deviation = deviations[i];
        for (int64_t s = 0; s < states; ++s) {
            const T ratio = old_deviation[s] / deviation[s];
            moved[s] = (mean[s] - old_mean[s]) / deviation[s];
            squared[s] = ratio * ratio;
            all.kl[s] += T(0.5) * (moved[s] * moved[s] + squared[s] - 1) - log_of(ratio);
        }
        for (int64_t s = 0; all.reverse_kl && s < states; ++s)
            all.reverse_kl[s] += T(0.5) * ((moved[s] * moved[s] + 1) / squared[s] - 1 + log_of(squared[s]));
    }
};

}  // namespace INSTRUCTIONS
