// Normal distributions with state-dependent noise (gSDE, https://arxiv.org/abs/2005.05719).
namespace INSTRUCTIONS {

// The outputs are the means. The variances are the product of the squares of the actor's last hidden layer, which are
// taken as constants, and of those of a matrix of standard deviations, plus SB3's epsilon.
template <class T> class StateDependent {
  public:
    StateDependent(const Networks<T>& networks, const Mlp<T>& actor, Memory& memory)
        : actor(actor), size(networks.parts[0]), width(networks.actor[networks.actor_layers - 1].inputs),
          log_std(networks.log_std), d_log_std(networks.d_log_std), squares(memory.take<T>(size * width)),
          d_variance(memory.take<T>(STATES)), sums(memory.take<double>(size * width)),
          latent_squares{memory.take<T>(width * STRIDE)}, variances{memory.take<T>(size * STRIDE)},
          z{memory.take<T>(size * STRIDE)}, shift{memory.take<T>(size * STRIDE)},
          variance_ratio{memory.take<T>(size * STRIDE)} {}

    void begin() {
        for (int64_t k = 0; k < width; ++k)
            for (int64_t i = 0; i < size; ++i) {
                const T deviation = exp_of(log_std[k * size + i]);
                squares[i * width + k] = deviation * deviation;
                sums[i * width + k] = 0;
            }
    }

    void begin_kl(const T*) {}

    void evaluate(ByState<const T> means, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluated<T>& all) {
        constexpr T HALF_LOG_2_PI = T(0.91893853320467274178);
        all.clear(states);
        find_variances(padded(states));
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < states; ++s) {
                const T deviation = root(variances[i][s]), log_scale = log_of(deviation) + HALF_LOG_2_PI;
                z[i][s] = (actions[i][s] - means[i][s]) / deviation;
                all.log_prob[s] -= T(0.5) * z[i][s] * z[i][s] + log_scale;
                all.entropy[s] += log_scale + T(0.5);
                if (!old) continue;
                const T ratio = old[size + i][s] / deviation;
                shift[i][s] = (means[i][s] - old[i][s]) / deviation;
                variance_ratio[i][s] = ratio * ratio;
                all.kl[s] += T(0.5) * (shift[i][s] * shift[i][s] + variance_ratio[i][s] - 1) - log_of(ratio);
            }
    }

    void gradient(ByState<T> d_means, ByState<const T>, ByState<const T> old, int64_t states, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i) {
            for (int64_t s = 0; s < states; ++s) {
                T d_mean = d.log_prob[s] * z[i][s], d_log = d_mean * z[i][s] - d.log_prob[s] + d.entropy;
                if (old) {
                    d_mean += d.kl * shift[i][s];
                    d_log += d.kl * (1 - variance_ratio[i][s] - shift[i][s] * shift[i][s]);
                }
                d_means[i][s] = d_mean / root(variances[i][s]);
                d_variance[s] = d_log / variances[i][s];  // Twice the derivative.
            }
            for (int64_t s = states; s < padded(states); ++s) d_variance[s] = 0;
            for (int64_t k = 0; k < width; ++k)
                sums[i * width + k] += dot(latent_squares[k], d_variance, padded(states));
        }
    }

    void end() {
        for (int64_t k = 0; k < width; ++k)
            for (int64_t i = 0; i < size; ++i)
                d_log_std[k * size + i] = static_cast<T>(squares[i * width + k] * sums[i * width + k]);
    }

  private:
    const Mlp<T>& actor;
    int64_t size, width;
    const T* log_std;
    T *d_log_std, *squares, *d_variance;
    double* sums;
    ByState<T> latent_squares, variances, z, shift, variance_ratio;

    void find_variances(int64_t columns) {
        constexpr T EPSILON = T(1e-6);
        const ByState<const T> latent{actor.last_hidden()};
        for (int64_t k = 0; k < width; ++k)
            for (int64_t s = 0; s < columns; ++s) latent_squares[k][s] = latent[k][s] * latent[k][s];
        multiply<T>({squares, width, 1, latent_squares.first, STRIDE, variances.first, STRIDE, size, columns, width});
        for (int64_t i = 0; i < size; ++i)
            for (int64_t s = 0; s < columns; ++s) variances[i][s] += EPSILON;
    }
};

}  // namespace INSTRUCTIONS
