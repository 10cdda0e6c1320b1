// All computations, compiled for one instruction set.
#pragma once

#include "beta.hpp"
#include "convolutions.hpp"
#include "descent.hpp"
#include "hybrid.hpp"
#include "policy.hpp"
#include "squashed.hpp"
#include "state_dependent.hpp"
#include "state_gaussian.hpp"
#include "table.hpp"

namespace INSTRUCTIONS {

// Creates a computation for the distribution of the networks, and runs it if there is memory. Returns the bytes that it
// needs.
template <template <class, class> class Computation, class T, class Run, class... Arguments>
int64_t compute(const Networks<T>& networks, void* memory, Run run, Arguments&... arguments) {
    const auto with_distribution = [&](auto* distribution) {
        Memory pieces{static_cast<char*>(memory)};
        Computation<T, std::remove_pointer_t<decltype(distribution)>> computation(networks, arguments..., pieces);
        if (memory) run(computation);
        return pieces.used;
    };
    switch (networks.distribution) {
    case GAUSSIAN: return with_distribution(static_cast<Gaussian<T>*>(nullptr));
    case CATEGORICAL: return with_distribution(static_cast<Categorical<T>*>(nullptr));
    case BERNOULLI: return with_distribution(static_cast<Bernoulli<T>*>(nullptr));
    case STATE_GAUSSIAN: return with_distribution(static_cast<StateGaussian<T>*>(nullptr));
    case SQUASHED_GAUSSIAN: return with_distribution(static_cast<Squashed<T, Gaussian<T>>*>(nullptr));
    case SQUASHED_STATE_GAUSSIAN: return with_distribution(static_cast<Squashed<T, StateGaussian<T>>*>(nullptr));
    case BETA: return with_distribution(static_cast<Beta<T>*>(nullptr));
    case HYBRID: return with_distribution(static_cast<Hybrid<T>*>(nullptr));
    default: return with_distribution(static_cast<StateDependent<T>*>(nullptr));
    }
}

template <class T>
int64_t descend(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms,
                const OwnLosses<T>& own, Proximal<T>& proximal, Pass& pass, Adam<T>& adam, void* memory) {
    const auto run = [](auto& descent) { descent.run(); };
    return compute<Descent>(networks, memory, run, rollout, terms, own, proximal, pass, adam);
}

template <class T> int64_t act(const Networks<T>& networks, Acting<T>& acting, void* memory) {
    return compute<Actor>(networks, memory, [&](auto& actor) { actor.run(acting); });
}

template <class T>
int64_t compute_mean_kl(const Networks<T>& networks, const Rollout<T>& rollout, double* kl, void* memory) {
    const auto run = [&](auto& policy) { *kl = mean_kl(policy, rollout.rows); };
    return compute<Evaluator>(networks, memory, run, rollout);
}

template <class Direction> int64_t convolve_all(const Convolutions& all, void* memory) {
    Memory pieces{static_cast<char*>(memory)};
    Direction pass(all, pieces);
    if (memory) pass.run();
    return pieces.used;
}

const Table table = {
    {descend<float>, act<float>, compute_mean_kl<float>},
    {descend<double>, act<double>, compute_mean_kl<double>},
    convolve_all<ForwardPass>,
    convolve_all<BackwardPass>,
};

}  // namespace INSTRUCTIONS
