// The policy that an objective stays close to, if it is not the policy of the rollout but an average of later ones
// (PPO-EWMA, https://arxiv.org/abs/2110.00641).
#pragma once

#include "interface.hpp"
#include "policy.hpp"

namespace INSTRUCTIONS {

// Returns a rollout as if the proximal policy had collected it, with what `ProximalPolicy::refer` writes.
template <class T> Rollout<T> collected_by(const Proximal<T>& proximal, Rollout<T> rollout) {
    if (!proximal.networks) return rollout;
    rollout.old_log_prob = proximal.log_prob;
    if (rollout.old) rollout.old = proximal.parameters;
    return rollout;
}

template <class T, class Distribution> class ProximalPolicy {
  public:
    ProximalPolicy(Proximal<T>& proximal, const Rollout<T>& rollout, int64_t batch_size, Memory& memory)
        : shift(memory.take<T>(batch_size)), proximal(proximal), rollout(without_old(rollout)), old_size(rollout.old_size),
          policy(*proximal.networks, this->rollout, memory) {}

    // For each state of the minibatch, log pi_prox(a|s) - log pi_old(a|s).
    T* shift;

    // Evaluates the policy on a minibatch, and multiplies its advantages by pi_prox / pi_old.
    void refer(const int64_t* indices, int64_t count, T* advantages) {
        policy.begin(indices[0]);
        for (int64_t start = 0; start < count; start += STATES) {
            policy.take(indices + start, count - start);
            policy.evaluate(indices + start);
            for (int64_t s = 0; s < policy.inputs.states; ++s) {
                const int64_t row = indices[start + s];
                shift[start + s] = policy.log_ratio[s];
                advantages[start + s] *= static_cast<T>(::exp(static_cast<double>(policy.log_ratio[s])));
                proximal.log_prob[row] = policy.evaluation.log_prob[s];
                if (proximal.parameters) policy.write_parameters(s, proximal.parameters + row * old_size);
            }
        }
    }

    // Adds the parameters after a step to the average, after the earlier ones have decayed.
    void follow(const T* parameters, int64_t size) {
        const double before = proximal.decay * proximal.total_weight;
        const T kept = static_cast<T>(before / (before + 1)), weight = static_cast<T>(1 / (before + 1));
        T* __restrict average = proximal.average;
        for (int64_t i = 0; i < size; ++i) average[i] = kept * average[i] + weight * parameters[i];
        proximal.total_weight = before + 1;
    }

  private:
    Proximal<T>& proximal;
    const Rollout<T> rollout;
    int64_t old_size;
    Evaluator<T, Distribution> policy;

    static Rollout<T> without_old(Rollout<T> rollout) {
        rollout.old = nullptr;
        rollout.old_size = 0;
        return rollout;
    }
};

}  // namespace INSTRUCTIONS
