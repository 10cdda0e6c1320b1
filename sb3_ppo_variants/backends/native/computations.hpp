// All computations, compiled for one instruction set.
#pragma once

#include "convolutions.hpp"
#include "descent.hpp"
#include "policy.hpp"
#include "state_dependent.hpp"
#include "table.hpp"

namespace INSTRUCTIONS {

// Calls a function with the distribution of the networks as its last argument.
template <class T, class Function> int64_t dispatch(const Networks<T>& networks, Function function) {
    switch (networks.distribution) {
    case GAUSSIAN: return function(static_cast<Gaussian<T>*>(nullptr));
    case CATEGORICAL: return function(static_cast<Categorical<T>*>(nullptr));
    case BERNOULLI: return function(static_cast<Bernoulli<T>*>(nullptr));
    default: return function(static_cast<StateDependent<T>*>(nullptr));
    }
}

template <class T>
int64_t descend(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms, const Objective<T>& own,
                const Pass& pass, Adam<T>& adam, Outcome& outcome, void* memory) {
    return dispatch(networks, [&](auto* kind) {
        Memory pieces{static_cast<char*>(memory)};
        Descending<T, std::remove_pointer_t<decltype(kind)>> descending(networks, rollout, terms, own, pass, adam, pieces);
        if (memory) descending.run(outcome);
        return pieces.used;
    });
}

template <class T> int64_t act(const Networks<T>& networks, Acting<T>& acting, void* memory) {
    return dispatch(networks, [&](auto* kind) {
        Memory pieces{static_cast<char*>(memory)};
        Actor<T, std::remove_pointer_t<decltype(kind)>> actor(networks, pieces);
        if (memory) actor.run(acting);
        return pieces.used;
    });
}

template <class T>
int64_t compare(const Networks<T>& networks, const Rollout<T>& rollout, double* kl, void* memory) {
    return dispatch(networks, [&](auto* kind) {
        Memory pieces{static_cast<char*>(memory)};
        Evaluating<T, std::remove_pointer_t<decltype(kind)>> on(networks, rollout, pieces);
        if (memory) *kl = mean_kl(on, rollout.rows);
        return pieces.used;
    });
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
    {descend<float>, act<float>, compare<float>}, {descend<double>, act<double>, compare<double>}, convolve_all,
    convolve_backward};

}  // namespace INSTRUCTIONS
