// Normal distributions with state-dependent noise (gSDE, https://arxiv.org/abs/2005.05719).
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// The outputs are the means. The variances are the product of the squares of the actor's last hidden layer, which are
// taken as constants, and of those of a matrix of standard deviations, plus SB3's epsilon.
// Actions may be squashed by tanh. Their entropy then has no closed form, and -log pi(a|s) estimates it.
template <class T> class StateDependent {
  public:
    static constexpr bool READS_LATENT = true, HAS_DEVIATIONS = true;

    StateDependent(const Networks<T>& networks, const Mlp<T>& actor, Memory& memory)
        : networks(networks), actor(actor), size(networks.parts[0]),
          width(networks.actor[networks.actor_layers - 1].inputs), is_squashed(networks.squash_epsilon >= 0),
          squares(memory.take<T>(size * width)), half_slopes(memory.take<T>(size * width)),
          sums(memory.take<double>(size * width)), latent_squares{memory.take<T>(width * STRIDE)},
          variances{memory.take<T>(size * STRIDE)}, z{memory.take<T>(size * STRIDE)},
          shift{memory.take<T>(size * STRIDE)}, variance_ratio{memory.take<T>(size * STRIDE)},
          d_variances{memory.take<T>(size * STRIDE)}, d_log_prob(memory.take<T>(STATES)) {}

    void begin() {
        for (int64_t k = 0; k < width; ++k)
            for (int64_t i = 0; i < size; ++i) {
                const Deviation deviation = deviation_of(networks.log_std[index(k, i)]);
                squares[i * width + k] = deviation.value * deviation.value;
                half_slopes[i * width + k] = deviation.value * deviation.slope;
                sums[i * width + k] = 0;
            }
    }

    void begin_kl(const T*) {}

    void evaluate(ByState<const T> means, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        all.clear(states);
        find_variances(padded(states));
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) {
                const T deviation = root(variances[i][s]), log_scale = log_of(deviation) + HALF_LOG_2_PI<T>;
                const T drawn = is_squashed ? unsquash(actions[i][s]) : actions[i][s];
                z[i][s] = (drawn - means[i][s]) / deviation;
                all.log_prob[s] -= T(0.5) * z[i][s] * z[i][s] + log_scale + log_squashing(drawn);
                all.entropy[s] += log_scale + T(0.5);
                if (!old) continue;
                const T ratio = old[size + i][s] / deviation;
                shift[i][s] = (means[i][s] - old[i][s]) / deviation;
                variance_ratio[i][s] = ratio * ratio;
                all.kl[s] += T(0.5) * (shift[i][s] * shift[i][s] + variance_ratio[i][s] - 1) - log_of(ratio);
                if (!all.reverse_kl) continue;
                const T rest = (shift[i][s] * shift[i][s] + 1) / variance_ratio[i][s] - 1;
                all.reverse_kl[s] += T(0.5) * rest + log_of(ratio);
            }
        for (int64_t s = 0; is_squashed && s < states; ++s) all.entropy[s] = -all.log_prob[s];
    }

    void gradient(ByState<T> d_means, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        const T* d_entropy = is_squashed ? nullptr : d.entropy;
        for (int64_t s = 0; s < states; ++s)
            d_log_prob[s] = is_squashed && d.entropy ? d.log_prob[s] - d.entropy[s] : d.log_prob[s];
        for (int64_t i = 0; i < size; ++i) {
            T* __restrict d_variance = d_variances[i];
            for (int64_t s = 0; s < states; ++s) {
                T d_mean = d_log_prob[s] * z[i][s], d_log = d_mean * z[i][s] - d_log_prob[s];
                if (d_entropy) d_log += d_entropy[s];
                if (old && d.kl) {
                    d_mean += d.kl[s] * shift[i][s];
                    d_log += d.kl[s] * (1 - variance_ratio[i][s] - shift[i][s] * shift[i][s]);
                }
                if (old && d.reverse_kl) {
                    d_mean += d.reverse_kl[s] * shift[i][s] / variance_ratio[i][s];
                    d_log += d.reverse_kl[s] * (1 / variance_ratio[i][s] - 1);
                }
                if (d.deviations) d_log += d.deviations[s * size + i] * deviation(s, i);
                d_means[i][s] = d_mean / root(variances[i][s]);
                d_variance[s] = d_log / variances[i][s];  // Twice the derivative.
            }
            for (int64_t s = states; s < padded(states); ++s) d_variance[s] = 0;
            for (int64_t k = 0; k < width; ++k)
                sums[i * width + k] += dot(latent_squares[k], d_variance, padded(states));
        }
    }

    void end(const Target<T>& target) {
        const int64_t columns = networks.log_std_columns, dimensions = size / columns;
        for (int64_t k = 0; k < width; ++k)
            for (int64_t column = 0; column < columns; ++column) {
                T slope = 0;
                for (int64_t i = column; i < column + dimensions; ++i)
                    slope += static_cast<T>(half_slopes[i * width + k] * sums[i * width + k]);
                T& total = target.of(networks.d_log_std)[k * columns + column];
                total = target.add ? total + slope : slope;
            }
    }

    void prepare(ByState<const T> means, int64_t states) {
        drawn_from = means;
        find_variances(padded(states));
    }

    int64_t n_deviations() const { return size; }
    T deviation(int64_t state, int64_t dimension) const { return root(variances[dimension][state]); }

    // The noise is a matrix with a row for each unit of the last hidden layer and a column for each dimension.
    T sample(int64_t state, const T* noise, T* action) const {
        const ByState<const T> latent{actor.last_hidden()};
        T log_prob = 0;
        for (int64_t i = 0; i < size; ++i) {
            T drawn = drawn_from[i][state];
            for (int64_t k = 0; k < width; ++k) drawn += latent[k][state] * noise[k * size + i];
            action[i] = is_squashed ? squash(drawn) : drawn;
            const T seen = is_squashed ? unsquash(action[i]) : drawn, scale = deviation(state, i);
            const T distance = (seen - drawn_from[i][state]) / scale;
            log_prob -= T(0.5) * distance * distance + log_of(scale) + HALF_LOG_2_PI<T> + log_squashing(seen);
        }
        return log_prob;
    }

  private:
    const Networks<T>& networks;
    const Mlp<T>& actor;
    int64_t size, width;
    bool is_squashed;
    T *squares, *half_slopes;
    double* sums;
    ByState<T> latent_squares, variances, z, shift, variance_ratio, d_variances;
    T* d_log_prob;
    ByState<const T> drawn_from = {};

    // A standard deviation, and its derivative with respect to its parameter.
    struct Deviation {
        T value, slope;
    };

    Deviation deviation_of(T log_std) const {
        if (!networks.use_expln || !(log_std > 0)) {
            const T value = exp_of(log_std);
            return {value, value};
        }
        const T above = 1 + static_cast<T>(networks.epsilon) + log_std;
        return {log_of(above) + 1, 1 / above};
    }

    int64_t index(int64_t k, int64_t i) const { return networks.log_std_columns == 1 ? k : k * size + i; }

    // The logarithm of the derivative of tanh, 0 if actions are not squashed.
    T log_squashing(T drawn) const {
        if (!is_squashed) return 0;
        const T action = squash(drawn);
        return log_of(1 - action * action + static_cast<T>(networks.squash_epsilon));
    }

    void find_variances(int64_t columns) {
        const ByState<const T> latent{actor.last_hidden()};
        for (int64_t k = 0; k < width; ++k)
            for (int64_t s = 0; s < columns; ++s) latent_squares[k][s] = latent[k][s] * latent[k][s];
        multiply<T>({squares, width, 1, latent_squares.first, STRIDE, variances.first, STRIDE, size, columns, width});
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < columns; ++s) variances[i][s] += static_cast<T>(networks.epsilon);
    }
};

}  // namespace INSTRUCTIONS
