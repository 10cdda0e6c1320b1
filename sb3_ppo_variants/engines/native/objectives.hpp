// The objectives of `sb3_ppo_variants.objectives` in one state, with their derivatives. Their classes give the equations,
// and their `constants` in the order in which they are read here.
#pragma once

#include "functions.hpp"
#include "interface.hpp"

namespace INSTRUCTIONS {

// What an objective knows of a state. KLs that are not computed are 0, and so is their mean over the minibatch unless
// `reads_mean` says that the objective needs it. `own` are the numbers that it takes for the state.
template <class T> struct Sample {
    T ratio, log_ratio, advantage, kl, reverse_kl, mean_kl;
    const T* own;
};

inline bool reads_mean(int64_t objective) { return objective == HINGED; }

// The negative objective, and its derivatives.
template <class T> struct Term {
    T loss, d_log_ratio, d_kl = 0, d_reverse_kl = 0;
};

// Adds penalties on KL(old || new) and KL(new || old).
template <class T> Term<T> penalized(Term<T> term, T kl_coef, T reverse_kl_coef, const Sample<T>& sample) {
    const T penalty = kl_coef * sample.kl + reverse_kl_coef * sample.reverse_kl;
    return {term.loss + penalty, term.d_log_ratio, kl_coef, reverse_kl_coef};
}

template <class T> T within(T low, T high, T ratio) { return ratio < low ? low : ratio > high ? high : ratio; }

template <class T> Term<T> clipped(T low, T high, const Sample<T>& sample) {
    const T from_ratio = sample.advantage * sample.ratio;
    const T from_bounded = sample.advantage * within(low, high, sample.ratio);
    if (from_ratio > from_bounded) return {-from_bounded, T(0)};
    return {-from_ratio, -from_ratio};
}

template <class T> Term<T> dual_clipped(T low, T high, T most, const Sample<T>& sample) {
    if (sample.advantage < 0 && sample.ratio > most) return {-most * sample.advantage, T(0)};
    return clipped(low, high, sample);
}

template <class T> Term<T> weighted(T low, T high, const Sample<T>& sample) {
    const T slope = -sample.advantage * within(low, high, sample.ratio);
    return {slope * sample.log_ratio, slope};
}

template <class T> Term<T> rolled_back(T low, T high, T alpha, const Sample<T>& sample) {
    const T a = sample.advantage, ratio = sample.ratio;
    const bool is_beyond = a > 0 ? ratio > high : a < 0 && ratio < low;
    if (!is_beyond) return {-ratio * a, -ratio * a};
    return {-a * ((1 + alpha) * (a > 0 ? high : low) - alpha * ratio), alpha * ratio * a};
}

template <class T> Term<T> rolled_back_by_kl(T delta, T alpha, const Sample<T>& sample) {
    const T surrogate = sample.ratio * sample.advantage;
    const T weight = sample.kl >= delta && surrogate > sample.advantage ? alpha : T(0);
    return {weight * sample.kl - surrogate, -surrogate, weight};
}

template <class T> Term<T> quadratic(T eps, const Sample<T>& sample) {
    const T a = sample.advantage, away = sample.ratio - 1, slope = (a < 0 ? -a : a) / eps * away;
    return {slope / 2 * away - sample.ratio * a, (slope - a) * sample.ratio};
}

template <class T> Term<T> gated(T of_positive, T of_negative, const Sample<T>& sample) {
    const T tau = sample.advantage > 0 ? of_positive : of_negative;
    const T half = tanh_of(tau / 2 * (sample.ratio - 1));
    return {-2 / tau * (1 + half) * sample.advantage, -(1 - half * half) * sample.ratio * sample.advantage};
}

template <class T> Term<T> discovered(T alpha, T beta, const Sample<T>& sample) {
    const T a = sample.advantage, ratio = sample.ratio, scale = a >= 0 ? alpha : beta;
    const T moved = (a >= 0 ? ratio - 1 : sample.log_ratio) * a, gained = moved > 0 ? moved : T(0);
    const T bounded = tanh_of(gained / scale);
    return {gained - scale * bounded - ratio * a, ((a >= 0 ? ratio : T(1)) * bounded * bounded - ratio) * a};
}

template <class T> Term<T> hinged(T kl_coef, T eta, T bound, const Sample<T>& sample) {
    const T surrogate = sample.ratio * sample.advantage, beyond = sample.mean_kl < bound ? T(0) : sample.mean_kl - bound;
    return {kl_coef * sample.kl + eta * beyond * beyond - surrogate, -surrogate, kl_coef + 2 * eta * beyond};
}

// All of them propagate NaN.
template <class T> Term<T> term_of(int64_t objective, const double* constants, const Sample<T>& sample) {
    const auto c = [&](int i) { return static_cast<T>(constants[i]); };
    switch (objective) {
    case DUAL_CLIPPED: return dual_clipped(c(0), c(1), c(2), sample);
    case WEIGHTED: return weighted(c(0), c(1), sample);
    case ROLLED_BACK: return rolled_back(c(0), c(1), c(2), sample);
    case ROLLED_BACK_BY_KL: return rolled_back_by_kl(c(0), c(1), sample);
    case QUADRATIC: return quadratic(c(0), sample);
    case GATED: return penalized(gated(c(0), c(1), sample), c(2), T(0), sample);
    case DISCOVERED: return discovered(c(0), c(1), sample);
    case HINGED: return hinged(c(0), c(1), c(2), sample);
    case CLIPPED_BY_STATE: return clipped(sample.own[0], sample.own[1], sample);
    default: return penalized(clipped(c(0), c(1), sample), c(2), c(3), sample);
    }
}

}  // namespace INSTRUCTIONS
