// Exponential functions, logarithms, square roots and activation functions. All of them propagate NaN.
#pragma once

#include "instruction_set.hpp"
#include "interface.hpp"

namespace INSTRUCTIONS {

// e^x whose relative error is 3e-9 before rounding (a least squares fit, weighted towards the largest errors), or 0 where
// e^x is less than 2^-125. Unlike the C library's function, it lets the compiler vectorise loops.
inline float exp_of(float x) {
    constexpr float START = -87.3f, END = 89, LOG2_E = 1.44269504089f;
    // The first part of log(2) has few digits, so its products with n are exact.
    constexpr float LOG_2 = 0.693359375f, REST = -2.12194440055e-4f;
    // Added to a small number, this rounds it to an integer, which the last bits of the sum hold.
    constexpr float ROUNDING = 12582912;
    x = x > END ? END : x;
    x = x < START ? START : x;
    // x = n log(2) + r, so e^x = 2^n e^r.
    const float sum = x * LOG2_E + ROUNDING, n = sum - ROUNDING;
    const float r = x - n * LOG_2 - n * REST;
    float p = 1.38143152094e-3f;
    p = p * r + 8.36885195147e-3f;
    p = p * r + 4.16684012208e-2f;
    p = p * r + 1.66665195153e-1f;
    p = p * r + 4.99999933723e-1f;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits = (bits + 126) << 23;  // 2^(n - 1) as a floating-point number, because 2^128 is not one.
    float half_scale;
    memcpy(&half_scale, &bits, sizeof bits);
    return (p * (r * r) + r + 1) * half_scale * 2;
}

// The same with Taylor's series, or 0 where e^x is less than 2^-1021.
inline double exp_of(double x) {
    constexpr double START = -708.39, END = 709.78, LOG2_E = 1.4426950408889634074;
    constexpr double LOG_2 = 0x1.62e42fefp-1, REST = 0x1.473de6af278edp-34, ROUNDING = 0x1.8p52;
    x = x > END ? END : x;
    x = x < START ? START : x;
    const double sum = x * LOG2_E + ROUNDING, n = sum - ROUNDING;
    const double r = x - n * LOG_2 - n * REST;
    double p = 1 / 6227020800.0;
    p = p * r + 1 / 479001600.0;
    p = p * r + 1 / 39916800.0;
    p = p * r + 1 / 3628800.0;
    p = p * r + 1 / 362880.0;
    p = p * r + 1 / 40320.0;
    p = p * r + 1 / 5040.0;
    p = p * r + 1 / 720.0;
    p = p * r + 1 / 120.0;
    p = p * r + 1 / 24.0;
    p = p * r + 1 / 6.0;
    p = p * r + 1 / 2.0;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits = (bits + 1022) << 52;
    double half_scale;
    memcpy(&half_scale, &bits, sizeof bits);
    return (p * (r * r) + r + 1) * half_scale * 2;
}

inline float log_of(float x) { return ::logf(x); }
inline double log_of(double x) { return ::log(x); }

// The logarithm of a positive number that is neither subnormal nor infinite, for loops that the compiler vectorises.
inline double log_of_normal(double x) {
    constexpr double LOG_2 = 0x1.62e42fefp-1, REST = 0x1.473de6af278edp-34;
    constexpr uint64_t ONE = uint64_t(1023) << 52, ROOT_HALF = 0x3fe6a09e667f3bcd, EXACT = uint64_t(1075) << 52;
    // x = 2^n m, with m between the root of 1/2 and that of 2.
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t exponent = (bits + (ONE - ROOT_HALF)) >> 52;
    const uint64_t of_m = bits - (exponent << 52) + ONE, of_n = exponent | EXACT;
    double m, n;
    memcpy(&m, &of_m, sizeof m);
    memcpy(&n, &of_n, sizeof n);  // 2^52 + 1023 + n
    n -= 0x1p52 + 1023;
    // log(m) = 2 artanh(s)
    const double f = m - 1, s = f / (2 + f), u = s * s;
    double p = 1 / 21.0;
    p = p * u + 1 / 19.0;
    p = p * u + 1 / 17.0;
    p = p * u + 1 / 15.0;
    p = p * u + 1 / 13.0;
    p = p * u + 1 / 11.0;
    p = p * u + 1 / 9.0;
    p = p * u + 1 / 7.0;
    p = p * u + 1 / 5.0;
    p = p * u + 1 / 3.0;
    // 2 s = f - s f. The difference is NaN if x is.
    return n * LOG_2 + (n * REST + (2 * s * u * p - s * f) + f) + (x - x);
}

inline float log1p_of(float x) { return ::log1pf(x); }
inline double log1p_of(double x) { return ::log1p(x); }

// log(1 + y) of a number in [0, 1], for loops that the compiler vectorises: 2 artanh(s), by a series that is long enough
// for the type.
template <class T> T log1p_of_share(T y) {
    constexpr int TERMS = sizeof(T) == 4 ? 8 : 16;
    const T s = y / (2 + y), u = s * s;
    T p = 1 / T(2 * TERMS - 1);
    for (int n = TERMS - 1; n > 0; --n) p = p * u + 1 / T(2 * n - 1);
    return 2 * s * p;
}

inline float root(float x) { return ::sqrtf(x); }
inline double root(double x) { return ::sqrt(x); }

// A quotient of an odd and an even polynomial whose relative difference from tanh is 2e-8, before rounding (a least
// squares fit, weighted towards the largest errors). Beyond END, tanh is 1 in single precision. With the sign set apart,
// one comparison at each end is enough.
inline float tanh_of(float x) {
    constexpr float END = 9.02f;
    const float size = ::fabsf(x), a = size > END ? END : size, u = a * a;
    float p = 1.33210875733e-8f, q = 7.76311259121e-7f;
    p = p * u + 2.05858647027e-5f;
    p = p * u + 3.49422349995e-3f;
    p = p * u + 1.33798931122e-1f;
    p = p * u + 9.99999980699e-1f;
    q = q * u + 3.2833699893e-4f;
    q = q * u + 2.58718410103e-2f;
    q = q * u + 4.6713209208e-1f;
    q = q * u + 1.0f;
    const float y = a * p / q;
    return ::copysignf(y > 1 ? 1 : y, x);
}

inline double tanh_of(double x) { return ::tanh(x); }

// log(1 + exp(x)) without overflow.
template <class T> T softplus(T x) { return (x > 0 ? x : T(0)) + log1p_of(exp_of(x > 0 ? -x : x)); }

// tanh of a number that actions are drawn from. Near 1, the last bit of tanh decides about its derivative, so this is the
// C library's function.
inline float squash(float x) { return ::tanhf(x); }
inline double squash(double x) { return ::tanh(x); }

// The number that tanh squashes to an action, which is kept within the bounds of tanh as in SB3.
template <class T> T unsquash(T action) {
    constexpr T LIMIT = 1 - (sizeof(T) == 4 ? T(1.1920928955078125e-07) : T(2.220446049250313e-16));
    const T inside = action < -LIMIT ? -LIMIT : action > LIMIT ? LIMIT : action;
    return T(0.5) * (log1p_of(inside) - log1p_of(-inside));
}

// Replaces z with f(z).
template <class T> void activate(int64_t activation, T* z, int64_t count) {
    if (activation == TANH)
        for (int64_t i = 0; i < count; ++i) z[i] = tanh_of(z[i]);
    else
        for (int64_t i = 0; i < count; ++i) z[i] = z[i] < 0 ? T(0) : z[i];
}

// Turns d = dL/df(z) into dL/dz, given h = f(z).
template <class T> void chain(int64_t activation, T* __restrict d, const T* __restrict h, int64_t count) {
    if (activation == TANH)
        for (int64_t i = 0; i < count; ++i) d[i] *= 1 - h[i] * h[i];
    else
        for (int64_t i = 0; i < count; ++i) d[i] *= h[i] > 0 ? T(1) : T(0);
}

}  // namespace INSTRUCTIONS
