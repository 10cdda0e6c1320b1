// Normalises observations, bit-identical to SB3's VecNormalize: rounds where NumPy rounds and adds in the same order.
// Also checks that numbers are finite.
#include <math.h>
#include <stdint.h>

#include "interface.hpp"

// A fused multiply-add would round once less.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#elif defined(_MSC_VER)
#pragma fp_contract(off)
#endif

namespace {

// Columns processed at a time.
constexpr int64_t BLOCK = 16;

// Some columns of the observations and their statistics.
template <class T> struct Columns {
    const T* observations;
    double *mean, *variance;
    float* normalized;
    int64_t width;
};

template <class T> void update(const Columns<T>& c, const Normalizing& all) {
    const T rows = static_cast<T>(all.rows);
    T means[BLOCK] = {}, variances[BLOCK] = {};
    for (int64_t i = 0; i < all.rows; ++i)
        for (int64_t j = 0; j < c.width; ++j) means[j] += c.observations[i * all.columns + j];
    for (int64_t j = 0; j < c.width; ++j) means[j] /= rows;
    for (int64_t i = 0; i < all.rows; ++i)
        for (int64_t j = 0; j < c.width; ++j) {
            const T deviation = c.observations[i * all.columns + j] - means[j];
            variances[j] += deviation * deviation;
        }
    const double n = static_cast<double>(all.rows), total = all.count + n;
    for (int64_t j = 0; j < c.width; ++j) {
        const T squares = variances[j] / rows * rows;
        const double delta = means[j] - c.mean[j];
        c.mean[j] += delta * n / total;
        c.variance[j] = (c.variance[j] * all.count + squares + delta * delta * all.count * n / total) / total;
    }
}

// Returns 0, or NaN if any number on the way to the result was not finite.
template <class T> double normalize(const Columns<T>& c, const Normalizing& all) {
    double scales[BLOCK], finite[BLOCK] = {};
    for (int64_t j = 0; j < c.width; ++j) {
        scales[j] = ::sqrt(c.variance[j] + all.epsilon);
        finite[j] = 0 * c.mean[j] + 0 * c.variance[j];
    }
    for (int64_t i = 0; i < all.rows; ++i)
        for (int64_t j = 0; j < c.width; ++j) {
            double number = (c.observations[i * all.columns + j] - c.mean[j]) / scales[j];
            finite[j] += 0 * number;
            number = number < -all.limit ? -all.limit : number;
            number = number > all.limit ? all.limit : number;
            const float single = static_cast<float>(number);
            finite[j] += 0 * single;
            c.normalized[i * all.columns + j] = single;
        }
    double all_finite = 0;
    for (int64_t j = 0; j < c.width; ++j) all_finite += finite[j];
    return all_finite;
}

template <class T> int64_t normalize(const Normalizing& all) {
    double finite = 0 * all.epsilon;
    for (int64_t first = 0; first < all.columns; first += BLOCK) {
        const int64_t left = all.columns - first;
        const Columns<T> columns = {static_cast<const T*>(all.observations) + first, all.mean + first,
                                    all.variance + first, all.normalized + first, left < BLOCK ? left : BLOCK};
        if (all.updates) update(columns, all);
        finite += normalize(columns, all);
    }
    return finite == 0;
}

}  // namespace

// Update the statistics, if required, and normalise the observations. Return 0 if any number was not finite.
EXPORTED int64_t ppo_normalize_float32(const Normalizing* all) { return normalize<float>(*all); }
EXPORTED int64_t ppo_normalize_float64(const Normalizing* all) { return normalize<double>(*all); }
