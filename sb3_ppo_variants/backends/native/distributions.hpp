// Action distributions in one state at a time. An output of the policy network is a column of a matrix.
//
// `gradient` refers to the state that `evaluate` was called for last. Sums over states are in double precision.
namespace INSTRUCTIONS {

inline float exp_of(float x) { return ::expf(x); }
inline double exp_of(double x) { return ::exp(x); }
inline float log_of(float x) { return ::logf(x); }
inline double log_of(double x) { return ::log(x); }
inline float log1p_of(float x) { return ::log1pf(x); }
inline double log1p_of(double x) { return ::log1p(x); }

template <class T> struct Column {
    T* first;
    T& operator[](int64_t i) const { return first[i * STRIDE]; }
};

template <class T> struct Evaluated {
    T log_prob, entropy, kl;
};

// dL/d of the evaluated quantities.
template <class T> struct Slopes {
    T log_prob, entropy, kl;
};

// Independent normal distributions; the outputs are their means.
template <class T> class Gaussian {
  public:
    Gaussian(const Networks<T>& networks, Memory& memory)
        : size(networks.parts[0]), log_std(networks.log_std), d_log_std(networks.d_log_std),
          deviations(memory.take<T>(size)), shift(memory.take<T>(size)), variance_ratio(memory.take<T>(size)),
          z(memory.take<T>(size)), sums(memory.take<double>(size)) {}

    void begin() {
        constexpr double HALF_LOG_2_PI = 0.91893853320467274178;
        log_scale = static_cast<T>(size * HALF_LOG_2_PI);
        for (int64_t i = 0; i < size; ++i) {
            deviations[i] = exp_of(log_std[i]);
            log_scale += log_std[i];
            sums[i] = 0;
        }
    }

    // All states have the same standard deviations, so one row of the old distributions' parameters is enough.
    void begin_kl(const T* old) {
        kl_constant = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T ratio = old[size + i] / deviations[i];
            variance_ratio[i] = ratio * ratio;
            kl_constant += variance_ratio[i] - 1 - log_of(variance_ratio[i]);
        }
    }

    Evaluated<T> evaluate(Column<const T> mean, const T* action, const T* old) {
        T squares = 0, kl = kl_constant;
        for (int64_t i = 0; i < size; ++i) {
            z[i] = (action[i] - mean[i]) / deviations[i];
            squares += z[i] * z[i];
        }
        for (int64_t i = 0; old && i < size; ++i) {
            shift[i] = (mean[i] - old[i]) / deviations[i];
            kl += shift[i] * shift[i];
        }
        return {T(-0.5) * squares - log_scale, log_scale + T(0.5) * size, T(0.5) * kl};
    }

    void gradient(Column<T> d_mean, const T*, const T* old, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i) {
            d_mean[i] = z[i] * d.log_prob / deviations[i];
            sums[i] += d.log_prob * (z[i] * z[i] - 1) + d.entropy;
            if (!old) continue;
            d_mean[i] += d.kl * shift[i] / deviations[i];
            sums[i] += d.kl * (1 - variance_ratio[i] - shift[i] * shift[i]);
        }
    }

    void end() {
        for (int64_t i = 0; i < size; ++i) d_log_std[i] = static_cast<T>(sums[i]);
    }

    T sample(Column<const T> mean, const T* noise, T* action) const {
        T squares = 0;
        for (int64_t i = 0; i < size; ++i) {
            action[i] = mean[i] + deviations[i] * noise[i];
            squares += noise[i] * noise[i];
        }
        return T(-0.5) * squares - log_scale;
    }

  private:
    int64_t size;
    const T* log_std;
    T *d_log_std, *deviations, *shift, *variance_ratio, *z;
    double* sums;
    T log_scale = 0, kl_constant = 0;
};

// Independent categorical distributions; the outputs are their concatenated logits.
template <class T> class Categorical {
  public:
    Categorical(const Networks<T>& networks, Memory& memory) : parts(networks.parts), n_parts(networks.n_parts) {
        int64_t total = 0;
        for (int64_t i = 0; i < n_parts; ++i) total += parts[i];
        log_probs = memory.take<T>(total);
        probs = memory.take<T>(total);
        entropies = memory.take<T>(n_parts);
    }

    void begin() {}
    void begin_kl(const T*) {}
    void end() {}

    Evaluated<T> evaluate(Column<const T> logits, const T* action, const T* old) {
        normalize(logits);
        Evaluated<T> all = {};
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            T entropy = 0;
            for (int64_t i = at; i < at + parts[part]; ++i) {
                probs[i] = exp_of(log_probs[i]);
                entropy -= probs[i] * log_probs[i];
                // The sum of p - p_old is 0, except for errors in normalising large logits.
                if (old) all.kl += exp_of(old[i]) * (old[i] - log_probs[i]) + (probs[i] - exp_of(old[i]));
            }
            entropies[part] = entropy;
            all.entropy += entropy;
            all.log_prob += log_probs[at + static_cast<int64_t>(action[part])];
        }
        return all;
    }

    void gradient(Column<T> d_logits, const T* action, const T* old, const Slopes<T>& d) {
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            for (int64_t i = at; i < at + parts[part]; ++i) {
                T slope = -d.log_prob * probs[i];
                if (d.entropy != 0) slope -= d.entropy * probs[i] * (log_probs[i] + entropies[part]);
                if (old) slope += d.kl * (probs[i] - exp_of(old[i]));
                d_logits[i] = slope;
            }
            d_logits[at + static_cast<int64_t>(action[part])] += d.log_prob;
        }
    }

    // Draws the category with the largest log-probability plus Gumbel noise.
    T sample(Column<const T> logits, const T* noise, T* action) {
        normalize(logits);
        T log_prob = 0;
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            int64_t best = at;
            for (int64_t i = at; i < at + parts[part]; ++i)
                if (log_probs[i] + noise[i] > log_probs[best] + noise[best]) best = i;
            action[part] = static_cast<T>(best - at);
            log_prob += log_probs[best];
        }
        return log_prob;
    }

  private:
    const int64_t* parts;
    int64_t n_parts;
    T *log_probs, *probs, *entropies;

    void normalize(Column<const T> logits) {
        for (int64_t part = 0, at = 0; part < n_parts; at += parts[part++]) {
            const int64_t end = at + parts[part];
            T largest = logits[at], total = 0;
            for (int64_t i = at; i < end; ++i) largest = logits[i] > largest ? logits[i] : largest;
            for (int64_t i = at; i < end; ++i) total += exp_of(logits[i] - largest);
            const T scale = largest + log_of(total);
            for (int64_t i = at; i < end; ++i) log_probs[i] = logits[i] - scale;
        }
    }
};

// Independent Bernoulli distributions; the outputs are the logits of 1.
template <class T> class Bernoulli {
  public:
    Bernoulli(const Networks<T>& networks, Memory& memory)
        : size(networks.parts[0]), chosen(memory.take<T>(size)), logits_(memory.take<T>(size)) {}

    void begin() {}
    void begin_kl(const T*) {}
    void end() {}

    Evaluated<T> evaluate(Column<const T> logits, const T* action, const T* old) {
        Evaluated<T> all = {};
        for (int64_t i = 0; i < size; ++i) {
            const T l = logits_[i] = logits[i], not_1 = softplus(l), p = chosen[i] = exp_of(l - not_1);
            all.log_prob += action[i] * l - not_1;
            all.entropy += not_1 - p * l;
            if (!old) continue;
            const T old_not_1 = softplus(old[i]), old_not_0 = softplus(-old[i]);
            all.kl += exp_of(-old_not_0) * (softplus(-l) - old_not_0) + exp_of(-old_not_1) * (not_1 - old_not_1);
        }
        return all;
    }

    void gradient(Column<T> d_logits, const T* action, const T* old, const Slopes<T>& d) {
        for (int64_t i = 0; i < size; ++i) {
            const T p = chosen[i];
            T slope = (action[i] - p) * d.log_prob;
            if (d.entropy != 0) slope -= d.entropy * logits_[i] * p * (1 - p);
            if (old) slope += d.kl * (p - exp_of(-softplus(-old[i])));
            d_logits[i] = slope;
        }
    }

    T sample(Column<const T> logits, const T* noise, T* action) {
        T log_prob = 0;
        for (int64_t i = 0; i < size; ++i) {
            const T not_1 = softplus(logits[i]);
            action[i] = noise[i] < exp_of(logits[i] - not_1) ? T(1) : T(0);
            log_prob += action[i] * logits[i] - not_1;
        }
        return log_prob;
    }

  private:
    int64_t size;
    T *chosen, *logits_;

    // log(1 + exp(x)) without overflow.
    static T softplus(T x) { return (x > 0 ? x : T(0)) + log1p_of(exp_of(x > 0 ? -x : x)); }
};

}  // namespace INSTRUCTIONS
