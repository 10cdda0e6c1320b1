// Beta distributions on [-1, 1] (https://proceedings.mlr.press/v70/chou17a.html).
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// log Gamma(x) = series - log(product), and its first two derivatives.
struct LogGamma {
    double series, product, digamma, trigamma;
};

// x is at least 1. Gamma(x) = Gamma(x + 6) / (x (x + 1) ... (x + 5)), and the asymptotic series (equations 5.11.1 and
// 5.11.2 of https://dlmf.nist.gov/5.11) are off by less than 1e-12 from 7 on.
inline LogGamma log_gamma(double x) {
    // The product with its first two derivatives gives the sums of 1 / (x + k) and of their squares with one division.
    double product = x, first = 1, second = 0;
    for (int k = 1; k < 6; ++k) {
        second = second * (x + k) + 2 * first;
        first = first * (x + k) + product;
        product *= x + k;
    }
    const double y = x + 6, inverse = 1 / (product * y), r = inverse * product, u = r * r, log_y = log_of(y);
    const double inverses = first * (inverse * y), squares = inverses * inverses - second * (inverse * y);
    const double of_value =
        1 / 12.0 + u * (-1 / 360.0 + u * (1 / 1260.0 + u * (-1 / 1680.0 + u * (1 / 1188.0 - u * 691 / 360360.0))));
    const double of_first =
        1 / 12.0 +
        u * (-1 / 120.0 + u * (1 / 252.0 + u * (-1 / 240.0 + u * (1 / 132.0 + u * (-691 / 32760.0 + u / 12.0)))));
    const double of_second =
        1 / 6.0 +
        u * (-1 / 30.0 + u * (1 / 42.0 + u * (-1 / 30.0 + u * (5 / 66.0 + u * (-691 / 2730.0 + u * 7 / 6.0)))));
    return {(y - 0.5) * log_y - y + 0.91893853320467274178 + r * of_value, product,
            log_y - 0.5 * r - u * of_first - inverses, r + 0.5 * u + r * u * of_second + squares};
}

// The logarithm of the Beta function.
inline double log_beta_of(const LogGamma& alpha, const LogGamma& beta, const LogGamma& sum) {
    return alpha.series + beta.series - sum.series - log_of(alpha.product / sum.product * beta.product);
}

// A stream of random numbers (SplitMix64, https://doi.org/10.1145/2714064.2660195).
class Stream {
  public:
    // Two uniform numbers in [0, 1) say where it begins.
    Stream(double first, double second)
        : state(static_cast<uint64_t>(first * 0x1p32) << 32 ^ static_cast<uint64_t>(second * 0x1p32)) {}

    // A number in (0, 1).
    double uniform() {
        uint64_t bits = state += 0x9e3779b97f4a7c15;
        bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
        bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
        return ((bits ^ bits >> 31) >> 12) * 0x1p-52 + 0x1p-53;
    }

    double normal() { return ::sqrt(-2 * ::log(uniform())) * ::cos(6.283185307179586 * uniform()); }

    // A number of the Gamma distribution with a shape of at least 1 (https://doi.org/10.1145/358407.358414).
    double gamma(double shape) {
        const double d = shape - 1 / 3.0, c = 1 / ::sqrt(9 * d);
        for (;;) {
            const double x = normal(), root = 1 + c * x, v = root * root * root;
            if (root > 0 && ::log(uniform()) < 0.5 * x * x + d * (1 - v + ::log(v))) return d * v;
        }
    }

  private:
    uint64_t state;
};

// The outputs are those of all alpha = softplus(output) + 1, then those of all beta. Everything is computed in double
// precision, because the logarithms of Gamma functions cancel each other.
template <class T> class Beta {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = false;

    Beta(const Networks<T>& networks, const Mlp<T>&, Memory& memory)
        : size(networks.parts[0]), known(memory.take<Known>(size * STRIDE)) {}

    void begin() {}
    void begin_kl(const T*) {}
    void end(const Target<T>&) {}
    const T* d_latent() const { return nullptr; }

    void evaluate(ByState<const T> outputs, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) {
                Known& t = known[i * STRIDE + s] = known_of(outputs[i][s], outputs[size + i][s]);
                t.log_x = log_distance(1 + double(actions[i][s]));
                t.log_rest = log_distance(1 - double(actions[i][s]));
                all.log_prob[s] += static_cast<T>(log_prob(t));
                const double weighted = (t.alpha - 1) * t.to_alpha.digamma + (t.beta - 1) * t.to_beta.digamma;
                all.entropy[s] += static_cast<T>(t.log_beta + LOG_2 - weighted +
                                                 (t.alpha + t.beta - 2) * t.to_sum.digamma);
                if (old) add_kl(t, old[i][s], old[size + i][s], all, s);
            }
    }

    void gradient(ByState<T> d_outputs, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) {
                const Known& t = known[i * STRIDE + s];
                const double sum = t.alpha + t.beta, of_sum = t.to_sum.digamma;
                double d_alpha = d.log_prob[s] * (t.log_x - t.to_alpha.digamma + of_sum);
                double d_beta = d.log_prob[s] * (t.log_rest - t.to_beta.digamma + of_sum);
                if (d.entropy) {
                    const double shared = (sum - 2) * t.to_sum.trigamma;
                    d_alpha += d.entropy[s] * (shared - (t.alpha - 1) * t.to_alpha.trigamma);
                    d_beta += d.entropy[s] * (shared - (t.beta - 1) * t.to_beta.trigamma);
                }
                if (old && d.kl) {
                    d_alpha += d.kl[s] * (t.to_alpha.digamma - of_sum - t.old_log_x);
                    d_beta += d.kl[s] * (t.to_beta.digamma - of_sum - t.old_log_rest);
                }
                if (old && d.reverse_kl) {
                    const double more = t.alpha - old[i][s], more_beta = t.beta - old[size + i][s];
                    const double shared = (more + more_beta) * t.to_sum.trigamma;
                    d_alpha += d.reverse_kl[s] * (more * t.to_alpha.trigamma - shared);
                    d_beta += d.reverse_kl[s] * (more_beta * t.to_beta.trigamma - shared);
                }
                d_outputs[i][s] = static_cast<T>(d_alpha * t.slope_alpha);
                d_outputs[size + i][s] = static_cast<T>(d_beta * t.slope_beta);
            }
    }

    void write_parameters(ByState<const T>, int64_t state, T* to) const {
        for (int64_t i = 0; i < size; ++i) {
            to[i] = static_cast<T>(known[i * STRIDE + state].alpha);
            to[size + i] = static_cast<T>(known[i * STRIDE + state].beta);
        }
    }

    void prepare(ByState<const T> outputs, int64_t) { drawn_from = outputs; }

    // The noise is two uniform numbers for each dimension.
    T sample(int64_t state, const T* noise, T* action) const {
        double total = 0;
        for (int64_t i = 0; i < size; ++i) {
            Known t = known_of(drawn_from[i][state], drawn_from[size + i][state]);
            action[i] = static_cast<T>(NAN);
            if (!(t.alpha + t.beta < INFINITY)) continue;
            Stream stream(noise[i], noise[size + i]);
            const double first = stream.gamma(t.alpha), second = stream.gamma(t.beta);
            action[i] = static_cast<T>((first - second) / (first + second));
            t.log_x = log_distance(1 + double(action[i]));
            t.log_rest = log_distance(1 - double(action[i]));
            total += log_prob(t);
        }
        return static_cast<T>(total);
    }

  private:
    static constexpr double LOG_2 = 0.69314718055994530942;

    // What the distribution of a dimension in a state consists of, and the logarithms of x and 1 - x for an action
    // 2 x - 1: those of the action, and the means over the old distribution.
    struct Known {
        double alpha, beta, slope_alpha, slope_beta, log_beta, log_x, log_rest, old_log_x, old_log_rest;
        LogGamma to_alpha, to_beta, to_sum;
    };

    int64_t size;
    Known* known;
    ByState<const T> drawn_from = {};

    static Known known_of(double first, double second) {
        Known t = {};
        set(first, t.alpha, t.slope_alpha);
        set(second, t.beta, t.slope_beta);
        t.to_alpha = log_gamma(t.alpha);
        t.to_beta = log_gamma(t.beta);
        t.to_sum = log_gamma(t.alpha + t.beta);
        t.log_beta = log_beta_of(t.to_alpha, t.to_beta, t.to_sum);
        return t;
    }

    // Computes softplus(output) + 1 and its derivative from one exponential function.
    static void set(double output, double& parameter, double& slope) {
        const double less = exp_of(-::fabs(output));
        parameter = (output > 0 ? output : 0) + log1p_of(less) + 1;
        slope = (output > 0 ? 1 : less) / (1 + less);
    }

    // The logarithm of half the distance from a bound, which is kept finite.
    static double log_distance(double twice) { return log_of(twice > 0x1p-23 ? twice / 2 : 0x1p-24); }

    static double log_prob(const Known& t) {
        return (t.alpha - 1) * t.log_x + (t.beta - 1) * t.log_rest - t.log_beta - LOG_2;
    }

    static void add_kl(Known& t, double alpha, double beta, const Evaluation<T>& all, int64_t s) {
        const LogGamma to_alpha = log_gamma(alpha), to_beta = log_gamma(beta), to_sum = log_gamma(alpha + beta);
        const double change = t.log_beta - log_beta_of(to_alpha, to_beta, to_sum);
        t.old_log_x = to_alpha.digamma - to_sum.digamma;
        t.old_log_rest = to_beta.digamma - to_sum.digamma;
        all.kl[s] += static_cast<T>(change + (alpha - t.alpha) * t.old_log_x + (beta - t.beta) * t.old_log_rest);
        if (!all.reverse_kl) return;
        const double log_x = t.to_alpha.digamma - t.to_sum.digamma, log_rest = t.to_beta.digamma - t.to_sum.digamma;
        all.reverse_kl[s] +=
            static_cast<T>((t.alpha - alpha) * log_x + (t.beta - beta) * log_rest - change);
    }
};

}  // namespace INSTRUCTIONS
