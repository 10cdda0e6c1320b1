// Vectors of numbers, as wide as the instruction set allows.
#pragma once

#include "instruction_set.hpp"

namespace INSTRUCTIONS {

#if defined(__GNUC__)
// The types of vectors in registers and of unaligned vectors in memory. With memcpy, vectors would leave the registers.
template <class T> struct VectorOf;
template <> struct VectorOf<float> {
    typedef float type __attribute__((vector_size(VECTOR_BYTES)));
    typedef float anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
};
template <> struct VectorOf<double> {
    typedef double type __attribute__((vector_size(VECTOR_BYTES)));
    typedef double anywhere __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));
};
template <class T> using Vector = typename VectorOf<T>::type;
#else
// Other compilers vectorise the loops as well as they can.
template <class T> struct Vector {
    T lane[VECTOR_BYTES / sizeof(T)];
};
template <class T> Vector<T> operator*(Vector<T> a, const Vector<T>& b) {
    for (size_t i = 0; i < VECTOR_BYTES / sizeof(T); ++i) a.lane[i] *= b.lane[i];
    return a;
}
template <class T> Vector<T>& operator+=(Vector<T>& a, const Vector<T>& b) {
    for (size_t i = 0; i < VECTOR_BYTES / sizeof(T); ++i) a.lane[i] += b.lane[i];
    return a;
}
#endif

// Precedes a loop over an array of vectors, which stay in registers if the loop is unrolled. GCC has to be told.
#if defined(__GNUC__) && !defined(__clang__)
#define UNROLLED _Pragma("GCC unroll 8")
#else
#define UNROLLED
#endif

template <class T> constexpr int64_t LANES = VECTOR_BYTES / sizeof(T);

template <class T> inline Vector<T> load(const T* from) {
#if defined(__GNUC__)
    return *reinterpret_cast<const typename VectorOf<T>::anywhere*>(from);
#else
    Vector<T> vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
#endif
}

template <class T> inline void store(const Vector<T>& vector, T* to) {
#if defined(__GNUC__)
    *reinterpret_cast<typename VectorOf<T>::anywhere*>(to) = vector;
#else
    memcpy(to, &vector, sizeof vector);
#endif
}

template <class T> inline Vector<T> broadcast(T number) {
#if defined(__GNUC__)
    return number - Vector<T>{};
#else
    Vector<T> vector;
    for (T& lane : vector.lane) lane = number;
    return vector;
#endif
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLES
#endif
#endif

#if defined(HAS_SHUFFLES)
// Adds to each lane the one at distance D, then halves D and repeats, until every lane holds the sum.
template <int D, class T, int... J> inline T fold(Vector<T> vector, std::integer_sequence<int, J...> lanes) {
    vector += __builtin_shufflevector(vector, vector, (J ^ D)...);
    if constexpr (D > 1) return fold<D / 2, T>(vector, lanes);
    return vector[0];
}
#endif

template <class T> inline T sum(const Vector<T>& vector) {
#if defined(HAS_SHUFFLES)
    return fold<LANES<T> / 2, T>(vector, std::make_integer_sequence<int, LANES<T>>());
#else
    T lanes[LANES<T>], total = 0;
    store(vector, lanes);
    for (T lane : lanes) total += lane;
    return total;
#endif
}

}  // namespace INSTRUCTIONS
