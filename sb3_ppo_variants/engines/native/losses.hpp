// The terms of the loss besides the objective. Equation numbers refer to https://arxiv.org/abs/1707.06347.
#pragma once

#include "instruction_set.hpp"
#include "interface.hpp"

namespace INSTRUCTIONS {

// A loss and its derivative with respect to a value.
template <class T> struct Sloped {
    T loss, slope;
};

// L^VF of equation 9, or one of its other forms.
template <class T> inline Sloped<T> value_error(T value, T old_value, T target, const Terms& terms) {
    const T error = value - target, squared = error * error, constant = static_cast<T>(terms.value_constant);
    if (terms.value_loss == SQUARED_ERROR) return {squared, 2 * error};
    if (terms.value_loss == HUBER) {
        const T slope = 2 * (error < -constant ? -constant : error > constant ? constant : error);
        return {slope == 2 * error ? squared : slope * error - constant * constant, slope};
    }
    const T moved = value - old_value;
    const T bounded = moved < -constant ? -constant : moved > constant ? constant : moved;
    const T clipped_error = old_value - target + bounded, clipped = clipped_error * clipped_error;
    const bool inside = !(moved < -constant || moved > constant);
    if (terms.value_loss == CLIPPED_ERROR) return {clipped, inside ? 2 * clipped_error : T(0)};
    return {clipped > squared ? clipped : squared, inside || squared > clipped ? 2 * error : T(0)};
}

// Normalises the advantages of a minibatch to mean 0 and standard deviation 1, if there are at least two.
template <class T> void normalize(T* advantages, int64_t count) {
    constexpr double EPSILON = 1e-8;
    if (count < 2) return;
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < count; ++i) mean += advantages[i];
    mean /= static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) squares += (advantages[i] - mean) * (advantages[i] - mean);
    const double scale = ::sqrt(squares / static_cast<double>(count - 1)) + EPSILON;
    for (int64_t i = 0; i < count; ++i) advantages[i] = static_cast<T>((advantages[i] - mean) / scale);
}

// The statistics of a minibatch, summed over its states.
struct Sums {
    double of[MEASURED] = {};

    // Adds what is measured in one state besides the losses. `moved` is the ratio to the policy of the rollout, and `ratio`
    // that of the objective, which is another one with an EWMA.
    void add(double log_moved, double moved, double ratio, double entropy, const Terms& terms) {
        of[ENTROPY_LOSS] -= entropy;
        of[APPROX_KL] += moved - 1 - log_moved;
        of[RATIO_DEVIATION] += ::fabs(moved - 1);
        of[CLIP_FRACTION] += ::fabs(ratio - 1) > terms.clip_range;
    }

    void add(const Sums& more) {
        for (int64_t i = 0; i < MEASURED; ++i) of[i] += more.of[i];
    }

    // Writes the means. Terms that the loss does not have are 0.
    void write(const Terms& terms, int64_t count, double* measured) const {
        for (int64_t i = 0; i < MEASURED; ++i) measured[i] = of[i] / static_cast<double>(count);
        measured[LOSS] = measured[POLICY_LOSS] + terms.ent_coef * measured[ENTROPY_LOSS] +
                         terms.vf_coef * measured[VALUE_LOSS];
    }
};

}  // namespace INSTRUCTIONS
