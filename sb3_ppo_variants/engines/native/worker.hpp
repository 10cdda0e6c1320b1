// What a thread computes of a minibatch: losses in some states, and their gradients.
#pragma once

#include "interface.hpp"
#include "losses.hpp"
#include "objectives.hpp"
#include "policy.hpp"

namespace INSTRUCTIONS {

template <class T> struct Minibatch {
    const int64_t* indices;
    int64_t count;
    const T* advantages;
    T mean_kl;
};

// Some states of a minibatch, and which terms of the loss are computed there.
struct Portion {
    int64_t first, end;
    bool of_policy, of_value;
};

template <class T, class Distribution> class Worker {
  public:
    Worker(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms, const OwnLosses<T>& own,
           const Proximal<T>& proximal, Memory& memory)
        : rollout(rollout), terms(terms), own(own), policy(networks, rollout, memory),
          critic(networks.critic, networks.critic_layers, networks.activation, networks.of_critic, memory),
          d_log_ratio(memory.take<T>(STATES)), d_entropy(memory.take<T>(STATES)), d_kl(memory.take<T>(STATES)),
          d_reverse_kl(memory.take<T>(STATES)) {
        if (proximal.networks) near.emplace(*proximal.networks, rollout, memory);
    }

    // Evaluates the policy, the values or both, tells losses in Python about them, and measures the policy.
    void look_ahead(const Minibatch<T>& minibatch, const Portion& portion, Sums& sums) {
        if (portion.of_policy) policy.begin(minibatch.indices[0]);
        for (int64_t start = portion.first; start < portion.end; start += STATES) {
            const int64_t* indices = minibatch.indices + start;
            policy.take(indices, portion.end - start);
            if (portion.of_policy) {
                policy.evaluate(indices);
                tell(start);
                measure(sums);
            }
            if (portion.of_value) copy(critic.forward(policy.inputs), own.values, start);
            last = {indices, portion.of_policy, portion.of_value};
        }
    }

    // Adds the losses, except those in Python, and writes the gradients.
    void descend(const Minibatch<T>& minibatch, const Portion& portion, Target<T> target, Sums& sums) {
        const bool calls = own.evaluate, calls_values = own.evaluate_values, adds = target.add;
        if (portion.of_policy) policy.begin(minibatch.indices[0]);
        if (near) near->begin(minibatch.indices[0]);
        for (int64_t start = portion.first; start < portion.end; start += STATES) {
            const int64_t* indices = minibatch.indices + start;
            // What was evaluated last is all of a small minibatch.
            const Evaluated known = last.indices == indices ? last : Evaluated{};
            last = {};
            target.add = adds || start > portion.first;
            if (!known.indices) policy.take(indices, portion.end - start);
            if (portion.of_policy) {
                if (!known.policy) policy.evaluate(indices);
                const Slopes<T> slopes =
                    calls ? called_slopes(start, minibatch.count) : add_losses(minibatch, start, sums);
                const T* more = calls && own.d_outputs ? own.d_outputs + start * policy.n_outputs : nullptr;
                policy.backward(indices, slopes, more, target);
            }
            if (portion.of_value) {
                const T* values = known.values ? own.values + start : critic.forward(policy.inputs);
                value_slopes(indices, calls_values ? own.d_values + start : nullptr, values, minibatch.count, sums);
                critic.backward(policy.inputs, target);
            }
        }
        target.add = adds;
        if (portion.of_policy) policy.distribution.end(target);
    }

  private:
    // The states that were evaluated last, and what was evaluated there.
    struct Evaluated {
        const int64_t* indices = nullptr;
        bool policy = false, values = false;
    };

    const Rollout<T>& rollout;
    const Terms& terms;
    const OwnLosses<T>& own;
    Evaluator<T, Distribution> policy;
    std::optional<Evaluator<T, Distribution>> near;  // The policy of an EWMA.
    Mlp<T> critic;
    T *d_log_ratio, *d_entropy, *d_kl, *d_reverse_kl;
    Evaluated last;

    // Tells an objective in Python what is known of the states that were evaluated last.
    void tell(int64_t start) const {
        copy(policy.log_ratio, own.log_ratio, start);
        copy(policy.evaluation.entropy, own.entropy, start);
        copy(policy.evaluation.kl, own.kl, start);
        copy(policy.evaluation.reverse_kl, own.reverse_kl, start);
        const int64_t at = start * policy.n_outputs;
        policy.copy_parameters(own.outputs ? own.outputs + at : nullptr,
                               own.deviations ? own.deviations + start * policy.n_deviations : nullptr);
    }

    // Copies numbers of the states that were evaluated last to their place in the minibatch, unless it is null.
    void copy(const T* from, T* to, int64_t start) const {
        if (to) memcpy(to + start, from, policy.inputs.states * sizeof(T));
    }

    void measure(Sums& sums) const {
        for (int64_t s = 0; s < policy.inputs.states; ++s) {
            const double log_ratio = policy.log_ratio[s], ratio = ::exp(log_ratio);
            sums.of[KL] += policy.evaluation.kl[s];
            sums.add(log_ratio, ratio, ratio, policy.evaluation.entropy[s], terms);
        }
    }

    // Returns the slopes of the loss, as the objective in Python has set them.
    Slopes<T> called_slopes(int64_t start, int64_t count) {
        const auto at = [&](const T* slopes, int64_t row) { return slopes ? slopes + start * row : nullptr; };
        for (int64_t s = 0; s < policy.inputs.states; ++s)
            d_entropy[s] = own.d_entropy[start + s] - static_cast<T>(terms.ent_coef / static_cast<double>(count));
        return {own.d_log_ratio + start, d_entropy, at(own.d_kl, 1), at(own.d_reverse_kl, 1),
                at(own.d_deviations, policy.n_deviations)};
    }

    // Adds the losses of an objective of the package, and returns their slopes.
    Slopes<T> add_losses(const Minibatch<T>& minibatch, int64_t start, Sums& sums) {
        const Evaluation<T>& all = policy.evaluation;
        const int64_t *indices = minibatch.indices + start, count = minibatch.count;
        const T of_entropy = static_cast<T>(-terms.ent_coef / static_cast<double>(count));
        if (near) {
            near->inputs = policy.inputs;
            near->evaluate(indices);
        }
        for (int64_t s = 0; s < policy.inputs.states; ++s) {
            const T to_near = near ? all.log_prob[s] - near->evaluation.log_prob[s] : policy.log_ratio[s];
            const double log_ratio = to_near, ratio = ::exp(log_ratio);
            // The ratio of the policy of the EWMA to that of the rollout.
            const double log_weight = near ? near->log_ratio[s] : 0, weight = near ? ::exp(log_weight) : 1;
            const T advantage = static_cast<T>(minibatch.advantages[start + s] * weight);
            const Term<T> term =
                term_of<T>(terms.objective, terms.constants,
                           {static_cast<T>(ratio), to_near, advantage, all.kl[s],
                            all.reverse_kl ? all.reverse_kl[s] : T(0), minibatch.mean_kl,
                            rollout.per_sample + indices[s] * rollout.per_sample_size});
            d_log_ratio[s] = term.d_log_ratio / count;
            d_kl[s] = term.d_kl / count;
            d_reverse_kl[s] = term.d_reverse_kl / count;
            d_entropy[s] = of_entropy;
            sums.of[KL] += all.kl[s];
            sums.of[POLICY_LOSS] += term.loss;
            sums.add(log_ratio + log_weight, ratio * weight, ratio, all.entropy[s], terms);
        }
        return {d_log_ratio, of_entropy != 0 ? d_entropy : nullptr, rollout.old ? d_kl : nullptr,
                all.reverse_kl ? d_reverse_kl : nullptr, nullptr};
    }

    // Sets the slopes of the value loss, which are those of a loss in Python unless they are null.
    void value_slopes(const int64_t* indices, const T* called, const T* values, int64_t count, Sums& sums) {
        T* d_values = critic.d_output();
        const T weight = static_cast<T>(terms.vf_coef);
        for (int64_t i = 0; i < policy.inputs.states; ++i) {
            if (called) {
                d_values[i] = weight * called[i];
                continue;
            }
            const int64_t row = indices[i];
            const Sloped<T> value = value_error(values[i], rollout.old_values[row], rollout.returns[row], terms);
            sums.of[VALUE_LOSS] += value.loss;
            d_values[i] = weight * (value.slope / count);
        }
        policy.clear_padding(d_values, 1, policy.inputs);
    }
};

}  // namespace INSTRUCTIONS
