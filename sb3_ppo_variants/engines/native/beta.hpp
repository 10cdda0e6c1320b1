// Beta distributions on [-1, 1] (https://proceedings.mlr.press/v70/chou17a.html).
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// A number for each state.
using Column = double[STATES];

// log Gamma(x) = series - log(product), and its first two derivatives.
struct LogGamma {
    Column series, product, digamma, trigamma;

    // All x are at least 1. Gamma(x) = Gamma(x + 6) / (x (x + 1) ... (x + 5)), and the asymptotic series (equations
    // 5.11.1 and 5.11.2 of https://dlmf.nist.gov/5.11) are off by less than 1e-12 from 7 on.
    void compute(const double* __restrict x, int64_t states) {
        for (int64_t s = 0; s < states; ++s) {
            // The first factor times the last is w, and the other pairs are w + 4 and w + 6. The derivatives of the
            // product give the sums of 1 / (x + k) and of their squares with one division.
            const double w = x[s] * (x[s] + 5), by_x = 2 * x[s] + 5, by_w = (3 * w + 20) * w + 24;
            const double all = w * (w + 4) * (w + 6);
            const double first = by_x * by_w, second = 2 * by_w + by_x * by_x * (6 * w + 20);
            const double y = x[s] + 6, inverse = 1 / (all * y), r = inverse * all, u = r * r, log_y = log_of_normal(y);
            const double inverses = first * (inverse * y), squares = inverses * inverses - second * (inverse * y);
            const double of_value = 1 / 12.0 + u * (-1 / 360.0 + u * (1 / 1260.0 + u * (-1 / 1680.0 +
                                    u * (1 / 1188.0 - u * 691 / 360360.0))));
            const double of_first = 1 / 12.0 + u * (-1 / 120.0 + u * (1 / 252.0 + u * (-1 / 240.0 +
                                    u * (1 / 132.0 + u * (-691 / 32760.0 + u / 12.0)))));
            const double of_second = 1 / 6.0 + u * (-1 / 30.0 + u * (1 / 42.0 + u * (-1 / 30.0 +
                                     u * (5 / 66.0 + u * (-691 / 2730.0 + u * 7 / 6.0)))));
            series[s] = (y - 0.5) * log_y - y + HALF_LOG_2_PI<double> + r * of_value;
            product[s] = all;
            digamma[s] = log_y - 0.5 * r - u * of_first - inverses;
            trigamma[s] = r + 0.5 * u + r * u * of_second + squares;
        }
    }
};

// Beta distributions of one dimension.
struct Betas {
    Column alpha, beta, sum, log_beta;  // The last is the logarithm of the Beta function.
    LogGamma of_alpha, of_beta, of_sum;

    // Computes everything else from alpha and beta.
    void compute(int64_t states) {
        for (int64_t s = 0; s < states; ++s) sum[s] = alpha[s] + beta[s];
        of_alpha.compute(alpha, states);
        of_beta.compute(beta, states);
        of_sum.compute(sum, states);
        for (int64_t s = 0; s < states; ++s)
            log_beta[s] = of_alpha.series[s] + of_beta.series[s] - of_sum.series[s] -
                          log_of_normal(of_alpha.product[s] / of_sum.product[s] * of_beta.product[s]);
    }

    // The means of log(x) and of log(1 - x).
    double log_x(int64_t s) const { return of_alpha.digamma[s] - of_sum.digamma[s]; }
    double log_rest(int64_t s) const { return of_beta.digamma[s] - of_sum.digamma[s]; }
};

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

    double normal() {
        const double radius = ::sqrt(-2 * ::log(uniform()));  // C++ does not say which operand is computed first.
        return radius * ::cos(6.283185307179586 * uniform());
    }

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
template <class T> class Beta : public WithoutParameters<T> {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = false;

    Beta(const Networks<T>& networks, const Mlp<T>&, Memory& memory)
        : size(networks.parts[0]), known(memory.take<Known>(size)), before(memory.take<Betas>(1)) {}

    void evaluate(ByState<const T> outputs, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        prepare(outputs, states);
        for (int64_t i = 0; i < size; ++i) {
            Known& t = known[i];
            const Betas& now = t.now;
            const T* action = actions[i];
            T *__restrict log_probs = all.log_prob, *__restrict entropies = all.entropy;
            for (int64_t s = 0; s < states; ++s) {
                t.log_x[s] = log_distance(1 + double(action[s]));
                t.log_rest[s] = log_distance(1 - double(action[s]));
                log_probs[s] += static_cast<T>(
                    log_prob(now.alpha[s], now.beta[s], now.log_beta[s], t.log_x[s], t.log_rest[s]));
                const double weighted =
                    (now.alpha[s] - 1) * now.of_alpha.digamma[s] + (now.beta[s] - 1) * now.of_beta.digamma[s];
                entropies[s] += static_cast<T>(now.log_beta[s] + LOG_2 - weighted +
                                               (now.sum[s] - 2) * now.of_sum.digamma[s]);
            }
            if (old) add_kl(t, old[i], old[size + i], states, all);
        }
    }

    void gradient(ByState<T> d_outputs, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i) {
            const Known& t = known[i];
            const Betas& now = t.now;
            const LogGamma &of_alpha = now.of_alpha, &of_beta = now.of_beta, &of_sum = now.of_sum;
            Column d_alpha, d_beta;
            for (int64_t s = 0; s < states; ++s) {
                d_alpha[s] = d.log_prob[s] * (t.log_x[s] - now.log_x(s));
                d_beta[s] = d.log_prob[s] * (t.log_rest[s] - now.log_rest(s));
            }
            for (int64_t s = 0; d.entropy && s < states; ++s) {
                const double shared = (now.sum[s] - 2) * of_sum.trigamma[s];
                d_alpha[s] += d.entropy[s] * (shared - (now.alpha[s] - 1) * of_alpha.trigamma[s]);
                d_beta[s] += d.entropy[s] * (shared - (now.beta[s] - 1) * of_beta.trigamma[s]);
            }
            for (int64_t s = 0; old && d.kl && s < states; ++s) {
                d_alpha[s] += d.kl[s] * (now.log_x(s) - t.old_log_x[s]);
                d_beta[s] += d.kl[s] * (now.log_rest(s) - t.old_log_rest[s]);
            }
            for (int64_t s = 0; old && d.reverse_kl && s < states; ++s) {
                const double more = now.alpha[s] - old[i][s], more_beta = now.beta[s] - old[size + i][s];
                const double shared = (more + more_beta) * of_sum.trigamma[s];
                d_alpha[s] += d.reverse_kl[s] * (more * of_alpha.trigamma[s] - shared);
                d_beta[s] += d.reverse_kl[s] * (more_beta * of_beta.trigamma[s] - shared);
            }
            T *__restrict first = d_outputs[i], *__restrict second = d_outputs[size + i];
            for (int64_t s = 0; s < states; ++s) {
                first[s] = static_cast<T>(d_alpha[s] * t.slope_alpha[s]);
                second[s] = static_cast<T>(d_beta[s] * t.slope_beta[s]);
            }
        }
    }

    void prepare(ByState<const T> outputs, int64_t states) {
        for (int64_t i = 0; i < size; ++i) {
            Known& t = known[i];
            read(outputs[i], states, t.now.alpha, t.slope_alpha);
            read(outputs[size + i], states, t.now.beta, t.slope_beta);
            t.now.compute(states);
        }
    }

    // The noise is two uniform numbers for each dimension.
    T sample(int64_t state, const T* noise, T* action) const {
        double total = 0;
        for (int64_t i = 0; i < size; ++i) {
            const Betas& now = known[i].now;
            const double alpha = now.alpha[state], beta = now.beta[state];
            action[i] = static_cast<T>(NAN);
            if (!(alpha + beta < INFINITY)) continue;
            Stream stream(noise[i], noise[size + i]);
            const double first = stream.gamma(alpha), second = stream.gamma(beta);
            action[i] = static_cast<T>((first - second) / (first + second));
            total += log_prob(alpha, beta, now.log_beta[state], log_distance(1 + double(action[i])),
                              log_distance(1 - double(action[i])));
        }
        return static_cast<T>(total);
    }

  private:
    static constexpr double LOG_2 = 0.69314718055994530942;

    // The distributions of a dimension and the slopes of their parameters with respect to the outputs; and, for actions
    // 2 x - 1, the logarithms of x and 1 - x: those of the action, and the means over the old distributions.
    struct Known {
        Betas now;
        Column slope_alpha, slope_beta, log_x, log_rest, old_log_x, old_log_rest;
    };

    int64_t size;
    Known* known;
    Betas* before;

    // Computes parameters and their slopes from one exponential function.
    static void read(const T* outputs, int64_t states, double* __restrict parameter, double* __restrict slope) {
        for (int64_t s = 0; s < states; ++s) {
            const double output = outputs[s], less = exp_of(-::fabs(output));
            parameter[s] = (output > 0 ? output : 0) + log_of_normal(1 + less) + 1;
            slope[s] = (output > 0 ? 1 : less) / (1 + less);
        }
    }

    // The logarithm of half the distance from a bound, which is kept finite.
    static double log_distance(double twice) { return log_of_normal(twice > 0x1p-23 ? twice / 2 : 0x1p-24); }

    static double log_prob(double alpha, double beta, double log_beta, double log_x, double log_rest) {
        return (alpha - 1) * log_x + (beta - 1) * log_rest - log_beta - LOG_2;
    }

    void add_kl(Known& t, const T* alpha, const T* beta, int64_t states, const Evaluation<T>& all) const {
        Betas& old = *before;
        const Betas& now = t.now;
        for (int64_t s = 0; s < states; ++s) {
            old.alpha[s] = alpha[s];
            old.beta[s] = beta[s];
        }
        old.compute(states);
        T *__restrict kl = all.kl, *__restrict reverse_kl = all.reverse_kl;
        for (int64_t s = 0; s < states; ++s) {
            t.old_log_x[s] = old.log_x(s);
            t.old_log_rest[s] = old.log_rest(s);
            kl[s] += static_cast<T>(now.log_beta[s] - old.log_beta[s] + (old.alpha[s] - now.alpha[s]) * old.log_x(s) +
                                    (old.beta[s] - now.beta[s]) * old.log_rest(s));
        }
        for (int64_t s = 0; reverse_kl && s < states; ++s)
            reverse_kl[s] += static_cast<T>(old.log_beta[s] - now.log_beta[s] +
                                            (now.alpha[s] - old.alpha[s]) * now.log_x(s) +
                                            (now.beta[s] - old.beta[s]) * now.log_rest(s));
    }
};

}  // namespace INSTRUCTIONS
