// Passes over the rollout that minimise the loss, with the steps of Adam.
#pragma once

#include "interface.hpp"
#include "losses.hpp"
#include "objectives.hpp"
#include "policy.hpp"
#include "proximal.hpp"

namespace INSTRUCTIONS {

// Scales a gradient down if its norm is too large, as torch.nn.utils.clip_grad_norm_ does. Returns the original norm.
template <class T> double clip_norm(T* gradient, int64_t size, double max_norm) {
    constexpr double EPSILON = 1e-6;
    const double norm = ::sqrt(static_cast<double>(sum_of_squares(gradient, size)));
    const double scale = max_norm / (norm + EPSILON);
    if (!(scale >= 1.0) && norm < INFINITY)
        for (int64_t i = 0; i < size; ++i) gradient[i] *= static_cast<T>(scale);
    return norm;
}

// torch.optim.Adam without weight decay and AMSGrad.
template <class T> void step(Adam<T>& adam) {
    const double steps = static_cast<double>(++adam.steps);
    const double step_size = adam.learning_rate * (1 - adam.beta1) / (1 - ::pow(adam.beta1, steps));
    const double root_scale = ::sqrt((1 - adam.beta2) / (1 - ::pow(adam.beta2, steps)));
    // step_size m' / (root_scale sqrt(v') + eps), with root_scale factored out of the sum.
    const T epsilon = static_cast<T>(adam.epsilon / root_scale), rate = static_cast<T>(step_size / root_scale);
    const T beta1 = static_cast<T>(adam.beta1), beta2 = static_cast<T>(adam.beta2);
    T *__restrict parameters = adam.parameters, *__restrict m = adam.first, *__restrict v = adam.second;
    const T* __restrict gradient = adam.gradient;
    for (int64_t i = 0; i < adam.size; ++i) {
        m[i] = beta1 * m[i] + gradient[i];
        v[i] = beta2 * v[i] + gradient[i] * gradient[i];
        parameters[i] -= rate * (m[i] / (root(v[i]) + epsilon));
    }
}

template <class T, class Distribution> class Descent {
  public:
    Descent(const Networks<T>& networks, const Rollout<T>& collected, const Terms& terms, const OwnLosses<T>& own,
            Proximal<T>& near, const Pass& pass, Adam<T>& adam, Memory& memory)
        : rollout(collected_by(near, collected)), terms(terms), own(own), pass(pass), adam(adam),
          policy(networks, rollout, memory),
          critic(networks.critic, networks.critic_layers, networks.activation, networks.of_critic, memory),
          d_log_ratio(memory.take<T>(STATES)), d_entropy(memory.take<T>(STATES)), d_kl(memory.take<T>(STATES)),
          d_reverse_kl(memory.take<T>(STATES)), advantages(memory.take<T>(pass.batch_size)), last_gradient(memory.take<T>(ends_early() ? adam.size : 0)) {
        if (near.networks) proximal.emplace(near, collected, pass.batch_size, memory);
    }

    void run(Outcome& outcome) {
        for (int64_t start = 0; start < rollout.rows; start += pass.batch_size) {
            const int64_t left = rollout.rows - start;
            const int64_t count = left < pass.batch_size ? left : pass.batch_size;
            if (!minibatch(pass.permutation + start, count, outcome)) return;
        }
    }

  private:
    const Rollout<T> rollout;
    const Terms& terms;
    const OwnLosses<T>& own;
    const Pass& pass;
    Adam<T>& adam;
    Evaluator<T, Distribution> policy;
    Mlp<T> critic;
    T *d_log_ratio, *d_entropy, *d_kl, *d_reverse_kl, *advantages, *last_gradient;
    std::optional<ProximalPolicy<T, Distribution>> proximal;

    bool ends_early() const { return pass.limit < INFINITY; }

    // Averages a number over the processes. Returns whether that succeeded.
    bool average(double& number, Outcome& outcome) const {
        if (!pass.average) return true;
        outcome.answered = 0;
        pass.average(&number);
        return outcome.answered;
    }

    // Adapts the step size to the KL of a minibatch.
    void adapt(double kl) {
        double& rate = adam.learning_rate;
        if (kl > pass.tolerance * pass.desired_kl) {
            rate /= pass.factor;
            if (rate < pass.min_learning_rate) rate = pass.min_learning_rate;
        } else if (kl > 0 && kl < pass.desired_kl / pass.tolerance) {
            rate *= pass.factor;
            if (rate > pass.max_learning_rate) rate = pass.max_learning_rate;
        }
    }

    // Returns whether to continue.
    bool minibatch(const int64_t* indices, int64_t count, Outcome& outcome) {
        double* measured = outcome.measured + MEASURED * outcome.minibatches++;
        const int64_t bytes = adam.size * static_cast<int64_t>(sizeof(T));
        if (ends_early()) memcpy(last_gradient, adam.gradient, bytes);
        Sums sums;
        if (!loss_and_gradient(indices, count, sums, outcome)) return false;
        sums.write(terms, count, measured);
        double statistic = measured[pass.statistic], kl = measured[KL];
        if (ends_early() && !average(statistic, outcome)) return false;
        if (statistic > pass.limit) {
            // No step follows, so restore the gradient of the last step.
            memcpy(adam.gradient, last_gradient, bytes);
            outcome.ended_early = 1;
            outcome.statistic = statistic;
            return false;
        }
        if (pass.desired_kl > 0 && outcome.minibatches > 1) {
            if (!average(kl, outcome)) return false;
            adapt(kl);
        }
        if (pass.average_gradient) {
            outcome.answered = 0;
            pass.average_gradient();
            if (!outcome.answered) return false;
        }
        outcome.norm = clip_norm(adam.gradient, adam.size, adam.max_norm);
        if (!(outcome.norm < INFINITY)) return false;
        step(adam);
        if (proximal && terms.of_policy) proximal->follow(adam.parameters, adam.size);
        return true;
    }

    // Returns whether the losses could be evaluated.
    bool loss_and_gradient(const int64_t* indices, int64_t count, Sums& sums, Outcome& outcome) {
        const bool calls = terms.of_policy && own.evaluate, calls_values = terms.of_value && own.evaluate_values;
        const bool is_ahead = calls || (terms.of_policy && reads_mean(terms.objective));
        take_advantages(indices, count);
        if (proximal && terms.of_policy) proximal->refer(indices, count, advantages);
        policy.begin(indices[0]);
        Sums ahead;
        if (is_ahead || calls_values) look_ahead(indices, count, is_ahead, calls_values, ahead);
        if (calls) {
            sums = ahead;
            if (!call_objective(indices, count, sums, outcome)) return false;
        }
        if (calls_values && !call_value_loss(indices, count, sums, outcome)) return false;
        const T mean_kl = static_cast<T>(ahead.kl / static_cast<double>(count));
        // What was evaluated last is all of a small minibatch.
        const bool is_small = count <= STATES;
        for (int64_t start = 0; start < count; start += STATES) {
            if (!(is_small && (is_ahead || calls_values))) policy.take(indices + start, count - start);
            if (terms.of_policy) {
                if (!(is_small && is_ahead)) policy.evaluate(indices + start);
                const Slopes<T> slopes =
                    calls ? called_slopes(start, count) : add_losses(indices + start, start, count, mean_kl, sums);
                const T* more = calls && own.d_outputs ? own.d_outputs + start * policy.n_outputs : nullptr;
                policy.backward(indices + start, slopes, more, start > 0);
            }
            if (terms.of_value) {
                const T* values = is_small && calls_values ? own.values : critic.forward(policy.inputs);
                value_slopes(indices + start, calls_values ? own.d_values + start : nullptr, values, count, sums);
                critic.backward(policy.inputs, start > 0);
            }
        }
        if (terms.of_policy) policy.distribution.end();
        return true;
    }

    void take_advantages(const int64_t* indices, int64_t count) {
        const bool in_order = terms.advantages == NORMALIZED_IN_ORDER;
        const int64_t first = indices - pass.permutation;
        for (int64_t i = 0; i < count; ++i) advantages[i] = rollout.advantages[in_order ? first + i : indices[i]];
        if (terms.advantages == NORMALIZED) normalize(advantages, count);
    }

    // Evaluates the policy, the values or both on a whole minibatch, and measures the policy.
    void look_ahead(const int64_t* indices, int64_t count, bool at_policy, bool at_values, Sums& sums) {
        for (int64_t start = 0; start < count; start += STATES) {
            policy.take(indices + start, count - start);
            if (at_policy) {
                policy.evaluate(indices + start);
                tell(start);
                measure(sums);
            }
            if (at_values) copy(critic.forward(policy.inputs), own.values, start);
        }
    }

    // Tells an objective in Python what is known of the states that were evaluated last.
    void tell(int64_t start) const {
        copy(policy.log_ratio, own.log_ratio, start);
        copy(policy.evaluation.entropy, own.entropy, start);
        copy(policy.evaluation.kl, own.kl, start);
        copy(policy.evaluation.reverse_kl, own.reverse_kl, start);
        const int64_t at = start * policy.n_outputs;
        policy.copy_parameters(own.outputs ? own.outputs + at : nullptr,
                               own.deviations ? own.deviations + at : nullptr);
    }

    void measure(Sums& sums) const {
        for (int64_t s = 0; s < policy.inputs.states; ++s) {
            const double log_ratio = policy.log_ratio[s], ratio = ::exp(log_ratio);
            sums.kl += policy.evaluation.kl[s];
            sums.add(log_ratio, ratio, ratio, policy.evaluation.entropy[s], terms);
        }
    }

    // Evaluates the objective in Python on a minibatch. Returns whether that succeeded.
    bool call_objective(const int64_t* indices, int64_t count, Sums& sums, Outcome& outcome) {
        memcpy(own.advantages, advantages, count * sizeof(T));
        outcome.answered = 0;
        own.evaluate(indices - pass.permutation, count);
        for (int64_t i = 0; outcome.answered && i < count; ++i) sums.policy_loss += own.losses[i];
        return outcome.answered;
    }

    // Evaluates the value loss in Python on a minibatch. Returns whether that succeeded.
    bool call_value_loss(const int64_t* indices, int64_t count, Sums& sums, Outcome& outcome) {
        outcome.answered = 0;
        own.evaluate_values(indices - pass.permutation, count);
        for (int64_t i = 0; outcome.answered && i < count; ++i) sums.value_loss += own.value_losses[i];
        return outcome.answered;
    }

    // Copies numbers of the states that were evaluated last to their place in the minibatch, unless it is null.
    void copy(const T* from, T* to, int64_t start) const {
        if (to) memcpy(to + start, from, policy.inputs.states * sizeof(T));
    }

    // Returns the slopes of the loss, as the objective in Python has set them.
    Slopes<T> called_slopes(int64_t start, int64_t count) {
        const auto at = [&](const T* slopes, int64_t row) { return slopes ? slopes + start * row : nullptr; };
        for (int64_t s = 0; s < policy.inputs.states; ++s)
            d_entropy[s] = own.d_entropy[start + s] - static_cast<T>(terms.ent_coef / static_cast<double>(count));
        return {own.d_log_ratio + start, d_entropy, at(own.d_kl, 1), at(own.d_reverse_kl, 1),
                at(own.d_deviations, policy.n_outputs)};
    }

    // Adds the losses of an objective of the package, and returns their slopes.
    Slopes<T> add_losses(const int64_t* indices, int64_t start, int64_t count, T mean_kl, Sums& sums) {
        const Evaluation<T>& all = policy.evaluation;
        const T of_entropy = static_cast<T>(-terms.ent_coef / static_cast<double>(count));
        for (int64_t s = 0; s < policy.inputs.states; ++s) {
            const double log_ratio = policy.log_ratio[s], ratio = ::exp(log_ratio);
            const Term<T> term = term_of<T>(terms.objective, terms.constants,
                                            {static_cast<T>(ratio), policy.log_ratio[s], advantages[start + s], all.kl[s],
                                             all.reverse_kl ? all.reverse_kl[s] : T(0), mean_kl,
                                             rollout.per_sample + indices[s] * rollout.per_sample_size});
            d_log_ratio[s] = term.d_log_ratio / count;
            d_kl[s] = term.d_kl / count;
            d_reverse_kl[s] = term.d_reverse_kl / count;
            d_entropy[s] = of_entropy;
            sums.kl += all.kl[s];
            sums.policy_loss += term.loss;
            const double log_moved = proximal ? log_ratio + proximal->shift[start + s] : log_ratio;
            sums.add(log_moved, proximal ? ::exp(log_moved) : ratio, ratio, all.entropy[s], terms);
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
            const Sloped<T> value =
                value_error(values[i], rollout.old_values[row], rollout.returns[row], terms);
            sums.value_loss += value.loss;
            d_values[i] = weight * (value.slope / count);
        }
        policy.clear_padding(d_values, 1, policy.inputs);
    }
};

}  // namespace INSTRUCTIONS
