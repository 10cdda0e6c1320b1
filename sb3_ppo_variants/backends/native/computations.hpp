// All computations, compiled for one instruction set. INSTRUCTIONS is its name, and VECTOR_BYTES the size of its
// vectors. Its registers hold BLOCK_ROWS rows of a product, each two vectors wide.
//
// Do not instantiate functions of the standard library here: the linker would keep only one of their compilations,
// which may be for another instruction set.
#include "simd.hpp"

#include "activations.hpp"
#include "exponentials.hpp"
#include "matrix.hpp"
#include "memory.hpp"

#include "network.hpp"

#include "distributions.hpp"
#include "state_dependent.hpp"
#include "losses.hpp"
#include "adam.hpp"

#include "acting.hpp"
#include "descent.hpp"

#include "convolution.hpp"

#include "convolutions.hpp"

namespace INSTRUCTIONS {

template <class T, class Distribution>
int64_t descend_with(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms, const Pass& pass,
                     Adam<T>& adam, Outcome& outcome, void* memory) {
    Memory pieces{static_cast<char*>(memory)};
    Descending<T, Distribution> descending(networks, rollout, terms, pass, adam, pieces);
    if (memory) descending.run(outcome);
    return pieces.used;
}

template <class T>
int64_t descend(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms, const Pass& pass,
                Adam<T>& adam, Outcome& outcome, void* memory) {
    const auto with = networks.distribution == GAUSSIAN          ? descend_with<T, Gaussian<T>>
                      : networks.distribution == CATEGORICAL     ? descend_with<T, Categorical<T>>
                      : networks.distribution == STATE_DEPENDENT ? descend_with<T, StateDependent<T>>
                                                                 : descend_with<T, Bernoulli<T>>;
    return with(networks, rollout, terms, pass, adam, outcome, memory);
}

template <class T, class Distribution>
int64_t act_with(const Networks<T>& networks, Acting<T>& acting, void* memory) {
    Memory pieces{static_cast<char*>(memory)};
    Actor<T, Distribution> actor(networks, pieces);
    if (memory) actor.run(acting);
    return pieces.used;
}

template <class T> int64_t act(const Networks<T>& networks, Acting<T>& acting, void* memory) {
    const auto with = networks.distribution == GAUSSIAN      ? act_with<T, Gaussian<T>>
                      : networks.distribution == CATEGORICAL ? act_with<T, Categorical<T>>
                                                             : act_with<T, Bernoulli<T>>;
    return with(networks, acting, memory);
}

inline int64_t convolve_all(const Convolutions& all, void* memory) {
    Memory pieces{static_cast<char*>(memory)};
    Convolved convolved(all, pieces);
    if (memory) convolved.forward();
    return pieces.used;
}

inline int64_t convolve_backward(const Convolutions& all, void* memory) {
    Memory pieces{static_cast<char*>(memory)};
    ConvolvedBackward convolved(all, pieces);
    if (memory) convolved.run();
    return pieces.used;
}

extern const Table table;
const Table table = {
    {descend<float>, act<float>}, {descend<double>, act<double>}, convolve_all, convolve_backward};

}  // namespace INSTRUCTIONS
