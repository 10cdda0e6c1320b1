// Action distributions in some states at a time. Sums over states are in double precision.
//
// `begin` precedes the states of a sum of gradients, and `end` writes the gradients of the distribution's parameters.
// `gradient` refers to the states that `evaluate` was called for last, and `sample` to those of `prepare`. A distribution
// that reads the actor's last hidden layer has READS_LATENT.
#pragma once

#include "functions.hpp"
#include "interface.hpp"
#include "network.hpp"

namespace INSTRUCTIONS {

template <class T> constexpr T HALF_LOG_2_PI = T(0.91893853320467274178);

// A matrix with a row for each number and a column for each state. A null pointer stands for no matrix.
template <class T> struct ByState {
    T* first;
    T* operator[](int64_t row) const { return first + row * STRIDE; }
    explicit operator bool() const { return first; }
    operator ByState<const T>() const { return {first}; }
};

// Numbers for each state: KL(old || new), and KL(new || old) unless its pointer is null.
template <class T> struct Evaluation {
    T *log_prob, *entropy, *kl, *reverse_kl;

    Evaluation(bool reverse, Memory& memory)
        : log_prob(memory.take<T>(STATES)), entropy(memory.take<T>(STATES)), kl(memory.take<T>(STATES)),
          reverse_kl(reverse ? memory.take<T>(STATES) : nullptr) {}

    void clear(int64_t states) const {
        for (T* numbers : {log_prob, entropy, kl, reverse_kl})
            if (numbers) memset(numbers, 0, states * sizeof(T));
    }
};

// dL/d of what was evaluated in each state, and of the standard deviations, which have a row for each state. A null
// pointer stands for zeros; only that of `log_prob` is never null.
template <class T> struct Slopes {
    const T *log_prob, *entropy, *kl, *reverse_kl, *deviations;
};

// A distribution without parameters of its own, apart from the outputs of the network.
template <class T> struct WithoutParameters {
    void begin() {}
    void begin_kl(const T*) {}
    void end(const Target<T>&) {}
};

// Independent normal distributions; the outputs are their means.
template <class T> class Gaussian {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = true;

    Gaussian(const Networks<T>& networks, const Mlp<T>&, Memory& memory)
        : size(networks.parts[0]), log_std(networks.log_std), d_log_std(networks.d_log_std),
          deviations(memory.take<T>(size)), variance_ratio(memory.take<T>(size)),
          z{memory.take<T>(size * STRIDE)}, shift{memory.take<T>(size * STRIDE)}, sums(memory.take<double>(size)) {}

    void begin() {
        log_scale = static_cast<T>(size * HALF_LOG_2_PI<double>);
        for (int64_t i = 0; i < size; ++i) {
            deviations[i] = exp_of(log_std[i]);
            log_scale += log_std[i];
            sums[i] = 0;
        }
    }

    // All states have the same standard deviations, so one row of the old distributions' parameters is enough.
    void begin_kl(const T* old) {
        kl_constant = reverse_constant = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T ratio = old[size + i] / deviations[i];
            variance_ratio[i] = ratio * ratio;
            kl_constant += variance_ratio[i] - 1 - log_of(variance_ratio[i]);
            reverse_constant += 1 / variance_ratio[i] - 1 + log_of(variance_ratio[i]);
        }
    }

    void evaluate(ByState<const T> means, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        for (int64_t i = 0; i < size; ++i) {
            add_squares(actions[i], means[i], deviations[i], states, z[i], all.log_prob);
            if (old) add_squares(means[i], old[i], deviations[i], states, shift[i], all.kl);
            for (int64_t s = 0; all.reverse_kl && s < states; ++s)
                all.reverse_kl[s] += shift[i][s] * shift[i][s] / variance_ratio[i];
        }
        for (int64_t s = 0; s < states; ++s) {
            all.log_prob[s] = T(-0.5) * all.log_prob[s] - log_scale;
            all.entropy[s] = log_scale + T(0.5) * size;
            all.kl[s] = T(0.5) * (kl_constant + all.kl[s]);
        }
        for (int64_t s = 0; all.reverse_kl && s < states; ++s)
            all.reverse_kl[s] = T(0.5) * (reverse_constant + all.reverse_kl[s]);
    }

    void gradient(ByState<T> d_means, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i) {
            T* __restrict d_mean = d_means[i];
            T terms[STATES];
            for (int64_t s = 0; s < states; ++s) {
                d_mean[s] = z[i][s] * d.log_prob[s] / deviations[i];
                terms[s] = d.log_prob[s] * (z[i][s] * z[i][s] - 1);
            }
            for (int64_t s = 0; d.entropy && s < states; ++s) terms[s] += d.entropy[s];
            for (int64_t s = 0; old && d.kl && s < states; ++s) {
                d_mean[s] += d.kl[s] * shift[i][s] / deviations[i];
                terms[s] += d.kl[s] * (1 - variance_ratio[i] - shift[i][s] * shift[i][s]);
            }
            for (int64_t s = 0; old && d.reverse_kl && s < states; ++s) {
                d_mean[s] += d.reverse_kl[s] * shift[i][s] / (deviations[i] * variance_ratio[i]);
                terms[s] += d.reverse_kl[s] * (1 / variance_ratio[i] - 1);
            }
            for (int64_t s = 0; d.deviations && s < states; ++s)
                terms[s] += d.deviations[s * size + i] * deviations[i];
            for (int64_t s = 0; s < states; ++s) sums[i] += terms[s];
        }
    }

    // Adds dL/d of the logarithm of a standard deviation in a state, after `gradient`.
    void add_to_log_std(ByState<T>, int64_t, int64_t dimension, T slope) { sums[dimension] += slope; }

    void end(const Target<T>& target) {
        T* d = target.of(d_log_std);
        for (int64_t i = 0; i < size; ++i) d[i] = target.add ? d[i] + static_cast<T>(sums[i]) : static_cast<T>(sums[i]);
    }

    void prepare(ByState<const T> means, int64_t) { drawn_from = means; }

    int64_t n_deviations() const { return size; }
    T deviation(int64_t, int64_t dimension) const { return deviations[dimension]; }

    T sample(int64_t state, const T* noise, T* action) const {
        for (int64_t i = 0; i < size; ++i) action[i] = drawn_from[i][state] + deviations[i] * noise[i];
        return log_prob(state, action);  // Of the action as it was rounded, which updates evaluate.
    }

    // The log-probability of numbers in a state that `prepare` was called for.
    T log_prob(int64_t state, const T* numbers) const {
        T squares = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T distance = (numbers[i] - drawn_from[i][state]) / deviations[i];
            squares += distance * distance;
        }
        return T(-0.5) * squares - log_scale;
    }

  private:
    int64_t size;
    const T* log_std;
    T *d_log_std, *deviations, *variance_ratio;
    ByState<T> z, shift;
    double* sums;
    T log_scale = 0, kl_constant = 0, reverse_constant = 0;
    ByState<const T> drawn_from = {};

    // Computes z = (x - mean) / deviation, and adds its squares.
    static void add_squares(const T* x, const T* mean, T deviation, int64_t states, T* __restrict z,
                            T* __restrict squares) {
        for (int64_t s = 0; s < states; ++s) {
            z[s] = (x[s] - mean[s]) / deviation;
            squares[s] += z[s] * z[s];
        }
    }
};

// Independent categorical distributions; the outputs are their concatenated logits.
template <class T> class Categorical : public WithoutParameters<T> {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = false;

    Categorical(const Networks<T>& networks, const Mlp<T>&, Memory& memory)
        : parts(networks.parts), n_parts(networks.n_parts), totals(memory.take<T>(STATES)),
          scales(memory.take<T>(STATES)), entropies{memory.take<T>(n_parts * STRIDE)},
          reverse_kls{memory.take<T>(n_parts * STRIDE)} {
        int64_t total = 0;
        for (int64_t i = 0; i < n_parts; ++i) total += parts[i];
        log_probs = {memory.take<T>(total * STRIDE)};
        probs = {memory.take<T>(total * STRIDE)};
    }

    void evaluate(ByState<const T> logits, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        prepare(logits, states);
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            T *__restrict entropy = entropies[part], *__restrict log_prob = all.log_prob;
            T* __restrict reverse_kl = reverse_kls[part];
            memset(entropy, 0, states * sizeof(T));
            memset(reverse_kl, 0, states * sizeof(T));
            for (int64_t i = at; i < at + parts[part]; ++i) {
                const T *l = log_probs[i], *action = actions[part], category = static_cast<T>(i - at);
                T* __restrict p = probs[i];
                for (int64_t s = 0; s < states; ++s) {
                    p[s] = exp_of(l[s]);
                    entropy[s] -= p[s] * l[s];
                    log_prob[s] += action[s] == category ? l[s] : T(0);
                }
                if (old) add_kl(old[i], l, p, states, all.kl);
                for (int64_t s = 0; all.reverse_kl && s < states; ++s) reverse_kl[s] += p[s] * (l[s] - old[i][s]);
            }
            for (int64_t s = 0; s < states; ++s) all.entropy[s] += entropy[s];
            for (int64_t s = 0; all.reverse_kl && s < states; ++s) all.reverse_kl[s] += reverse_kl[s];
        }
    }

    void gradient(ByState<T> d_logits, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Slopes<T>& d) {
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++])
            for (int64_t i = at; i < at + parts[part]; ++i) {
                const T *p = probs[i], *l = log_probs[i], *entropy = entropies[part], *action = actions[part];
                const T category = static_cast<T>(i - at);
                T* __restrict slope = d_logits[i];
                for (int64_t s = 0; s < states; ++s)
                    slope[s] = d.log_prob[s] * ((action[s] == category ? T(1) : T(0)) - p[s]);
                for (int64_t s = 0; d.entropy && s < states; ++s)
                    slope[s] -= d.entropy[s] * p[s] * (l[s] + entropy[s]);
                for (int64_t s = 0; old && d.kl && s < states; ++s) slope[s] += d.kl[s] * (p[s] - exp_of(old[i][s]));
                for (int64_t s = 0; old && d.reverse_kl && s < states; ++s)
                    slope[s] += d.reverse_kl[s] * p[s] * (l[s] - old[i][s] - reverse_kls[part][s]);
            }
    }

    // The probabilities of a category, by its output, in the states that `evaluate` was called for last.
    const T* probabilities(int64_t output) const { return probs[output]; }

    // Normalises the logits.
    void prepare(ByState<const T> logits, int64_t states) {
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            const int64_t end = at + parts[part];
            T *__restrict total = totals, *__restrict scale = scales;
            memcpy(scale, logits[at], states * sizeof(T));
            memset(total, 0, states * sizeof(T));
            for (int64_t i = at + 1; i < end; ++i)
                for (int64_t s = 0; s < states; ++s) scale[s] = logits[i][s] > scale[s] ? logits[i][s] : scale[s];
            for (int64_t i = at; i < end; ++i)
                for (int64_t s = 0; s < states; ++s) total[s] += exp_of(logits[i][s] - scale[s]);
            for (int64_t s = 0; s < states; ++s) scale[s] += log_of(total[s]);
            for (int64_t i = at; i < end; ++i) {
                T* __restrict l = log_probs[i];
                for (int64_t s = 0; s < states; ++s) l[s] = logits[i][s] - scale[s];
            }
        }
    }

    // Draws the category with the largest log-probability plus Gumbel noise.
    T sample(int64_t state, const T* noise, T* action) const {
        T log_prob = 0;
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            int64_t best = at;
            for (int64_t i = at; i < at + parts[part]; ++i)
                if (log_probs[i][state] + noise[i] > log_probs[best][state] + noise[best]) best = i;
            action[part] = static_cast<T>(best - at);
            log_prob += log_probs[best][state];
        }
        return log_prob;
    }

  private:
    const int64_t* parts;
    int64_t n_parts;
    T *totals, *scales;
    ByState<T> entropies, reverse_kls, log_probs, probs;

    // The sum of p - p_old is 0, except for errors in normalising large logits.
    static void add_kl(const T* old, const T* l, const T* p, int64_t states, T* __restrict kl) {
        for (int64_t s = 0; s < states; ++s) {
            const T p_old = exp_of(old[s]);
            kl[s] += p_old * (old[s] - l[s]) + (p[s] - p_old);
        }
    }
};

// Independent Bernoulli distributions; the outputs are the logits of 1.
template <class T> class Bernoulli : public WithoutParameters<T> {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = false;

    Bernoulli(const Networks<T>& networks, const Mlp<T>&, Memory& memory)
        : size(networks.parts[0]), chosen{memory.take<T>(size * STRIDE)} {}

    void evaluate(ByState<const T> logits, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        evaluated = logits;
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) {
                const T l = logits[i][s], not_1 = softplus(l), p = chosen[i][s] = exp_of(l - not_1);
                all.log_prob[s] += actions[i][s] * l - not_1;
                all.entropy[s] += not_1 - p * l;
                if (old) all.kl[s] += divergence(old[i][s], l, not_1);
                if (all.reverse_kl) all.reverse_kl[s] += divergence(l, old[i][s], softplus(old[i][s]));
            }
    }

    void gradient(ByState<T> d_logits, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) {
                const T p = chosen[i][s];
                T slope = (actions[i][s] - p) * d.log_prob[s];
                if (d.entropy) slope -= d.entropy[s] * evaluated[i][s] * p * (1 - p);
                if (old && d.kl) slope += d.kl[s] * (p - exp_of(-softplus(-old[i][s])));
                if (old && d.reverse_kl) slope += d.reverse_kl[s] * p * (1 - p) * (evaluated[i][s] - old[i][s]);
                d_logits[i][s] = slope;
            }
    }

    void prepare(ByState<const T> logits, int64_t) { evaluated = logits; }

    T sample(int64_t state, const T* noise, T* action) const {
        T log_prob = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T l = evaluated[i][state], not_1 = softplus(l);
            action[i] = noise[i] < exp_of(l - not_1) ? T(1) : T(0);
            log_prob += action[i] * l - not_1;
        }
        return log_prob;
    }

  private:
    int64_t size;
    ByState<T> chosen;
    ByState<const T> evaluated = {};

    static T divergence(T old, T logit, T not_1) {
        const T old_not_1 = softplus(old), old_not_0 = softplus(-old);
        return exp_of(-old_not_0) * (softplus(-logit) - old_not_0) + exp_of(-old_not_1) * (not_1 - old_not_1);
    }
};

}  // namespace INSTRUCTIONS
