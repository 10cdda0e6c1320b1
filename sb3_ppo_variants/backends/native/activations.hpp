// Activation functions and their derivatives, which are computed from the functions' values. All of them propagate NaN.
namespace INSTRUCTIONS {

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
