// The objectives of `sb3_ppo_variants.objectives` in one state, with their derivatives. Their classes give the equations,
// and their `constants` in the order in which they are read here.
#pragma once

#include "functions.hpp"
#include "interface.hpp"

namespace INSTRUCTIONS {

// What an objective knows of a state. KLs that are not computed are 0.
template <class T> struct Sample {
    T ratio, log_ratio, advantage, kl, reverse_kl;
};

// The negative objective, and its derivatives.
template <class T> struct Term {
    T loss, d_log_ratio, d_kl = 0, d_reverse_kl = 0;
};

// Adds beta KL(old || new).
template <class T> Term<T> penalized(Term<T> term, T kl_coef, const Sample<T>& sample) {
    return {term.loss + kl_coef * sample.kl, term.d_log_ratio, term.d_kl + kl_coef, term.d_reverse_kl};
}

// Propagates NaN.
template <class T> Term<T> clipped(T low, T high, const Sample<T>& sample) {
    const T ratio = sample.ratio, bounded = ratio < low ? low : ratio > high ? high : ratio;
    const T from_ratio = sample.advantage * ratio, from_bounded = sample.advantage * bounded;
    if (from_ratio > from_bounded) return {-from_bounded, T(0)};
    return {-from_ratio, -from_ratio};
}

template <class T> Term<T> term_of(int64_t objective, const double* constants, const Sample<T>& sample) {
    const auto c = [&](int i) { return static_cast<T>(constants[i]); };
    switch (objective) {
    default:  // CLIPPED, or not clipped if the range is infinite.
        return penalized(clipped<T>(static_cast<T>(1 - constants[0]), static_cast<T>(1 + constants[0]), sample), c(1), sample);
    }
}

}  // namespace INSTRUCTIONS
