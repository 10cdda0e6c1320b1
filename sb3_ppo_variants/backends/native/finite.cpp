// Tells whether numbers are finite.
#include <stdint.h>

#include "exported.hpp"
#include "interface.hpp"

namespace {

template <class T> int64_t are_finite(const Numbers& all) {
    const T* numbers = static_cast<const T*>(all.numbers);
    T sum = 0;
    // Zero times a number that is not finite is NaN.
    for (int64_t i = 0; i < all.count; ++i) sum += 0 * numbers[i];
    return sum == 0;
}

}  // namespace

EXPORTED int64_t ppo_are_finite_float32(const Numbers* all) { return are_finite<float>(*all); }
EXPORTED int64_t ppo_are_finite_float64(const Numbers* all) { return are_finite<double>(*all); }
