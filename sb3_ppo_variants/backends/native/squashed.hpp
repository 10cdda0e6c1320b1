// Distributions whose numbers are squashed to actions by tanh.
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// KLs are those of the distribution that is squashed. The entropy has no closed form, and -log pi(a|s) estimates it.
template <class T, class Inner> class Squashed {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = Inner::HAS_DEVIATIONS;

    Squashed(const Networks<T>& networks, const Mlp<T>& actor, Memory& memory)
        : inner(networks, actor, memory), size(networks.parts[0]), numbers{memory.take<T>(size * STRIDE)},
          d_log_prob(memory.take<T>(STATES)), drawn(memory.take<T>(size)) {}

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
        for (int64_t s = 0; s < states; ++s) all.entropy[s] = -all.log_prob[s];
    }

    void gradient(ByState<T> d_outputs, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        for (int64_t s = 0; s < states; ++s) d_log_prob[s] = d.entropy ? d.log_prob[s] - d.entropy[s] : d.log_prob[s];
        inner.gradient(d_outputs, numbers, old, states, {d_log_prob, nullptr, d.kl, d.reverse_kl, d.deviations});
    }

    void write_parameters(ByState<const T> outputs, int64_t state, T* to) const {
        inner.write_parameters(outputs, state, to);
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
    T *d_log_prob, *drawn;

    // The logarithm of the derivative of tanh.
    static T log_slope(T x) { return 2 * (T(0.69314718055994530942) - x - softplus(-2 * x)); }
};

}  // namespace INSTRUCTIONS
