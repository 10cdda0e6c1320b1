// Passes over the rollout that minimise the loss.
namespace INSTRUCTIONS {

template <class T, class Distribution> class Descending {
  public:
    Descending(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms, const Pass& pass,
               Adam<T>& adam, Memory& memory)
        : rollout(rollout), terms(terms), pass(pass), adam(adam),
          inputs(networks.actor[0].inputs, memory),
          actor(networks.actor, networks.actor_layers, networks.activation, memory),
          critic(networks.critic, networks.critic_layers, networks.activation, memory),
          distribution(networks, actor, memory), now(memory),
          n_outputs(networks.actor[networks.actor_layers - 1].outputs),
          actions{memory.take<T>(rollout.action_size * STRIDE)}, old{memory.take<T>(rollout.old_size * STRIDE)},
          slopes(memory.take<T>(STATES)), advantages(memory.take<T>(pass.batch_size)),
          last_gradient(memory.take<T>(ends_early() ? adam.size : 0)) {}

    void run(Outcome& outcome) {
        for (int64_t start = 0; start < rollout.rows; start += pass.batch_size) {
            const int64_t left = rollout.rows - start;
            const int64_t count = left < pass.batch_size ? left : pass.batch_size;
            if (!minibatch(pass.permutation + start, count, outcome)) return;
        }
    }

  private:
    const Rollout<T>& rollout;
    const Terms& terms;
    const Pass& pass;
    Adam<T>& adam;
    Inputs<T> inputs;
    Mlp<T> actor, critic;
    Distribution distribution;
    Evaluated<T> now;
    int64_t n_outputs;
    ByState<T> actions, old;
    T *slopes, *advantages, *last_gradient;

    bool ends_early() const { return pass.most_kl < INFINITY; }

    // Returns whether to continue.
    bool minibatch(const int64_t* indices, int64_t count, Outcome& outcome) {
        double* measured = outcome.measured + MEASURED * outcome.minibatches++;
        const int64_t bytes = adam.size * static_cast<int64_t>(sizeof(T));
        if (ends_early()) memcpy(last_gradient, adam.gradient, bytes);
        loss_and_gradient(indices, count).write(terms, count, measured);
        double approx_kl = measured[APPROX_KL];
        if (ends_early() && pass.average_kl) {
            outcome.averaged = 0;
            pass.average_kl(&approx_kl);
            if (!outcome.averaged) return false;
        }
        if (terms.of_policy && approx_kl > pass.most_kl) {
            // No step follows, so restore the gradient of the last step.
            memcpy(adam.gradient, last_gradient, bytes);
            return false;
        }
        if (pass.average_gradient) {
            outcome.averaged = 0;
            pass.average_gradient();
            if (!outcome.averaged) return false;
        }
        outcome.norm = clip_norm(adam.gradient, adam.size, adam.max_norm);
        if (!(outcome.norm < INFINITY)) return false;
        step(adam);
        return true;
    }

    Sums loss_and_gradient(const int64_t* indices, int64_t count) {
        Sums sums;
        distribution.begin();
        if (rollout.old) distribution.begin_kl(rollout.old);
        take_advantages(indices, count);
        for (int64_t start = 0; start < count; start += STATES) {
            inputs.gather(rollout.features, indices + start, count - start < STATES ? count - start : STATES);
            inputs.arrange();
            if (terms.of_policy) {
                policy_slopes(indices + start, advantages + start, count, sums);
                actor.backward(inputs, start > 0);
            }
            if (terms.of_value) {
                value_slopes(indices + start, count, sums);
                critic.backward(inputs, start > 0);
            }
        }
        if (terms.of_policy) distribution.end();
        return sums;
    }

    void take_advantages(const int64_t* indices, int64_t count) {
        const bool in_order = terms.advantages == NORMALIZED_IN_ORDER;
        const int64_t first = indices - pass.permutation;
        for (int64_t i = 0; i < count; ++i) advantages[i] = rollout.advantages[in_order ? first + i : indices[i]];
        if (terms.advantages == NORMALIZED) normalize(advantages, count);
    }

    void policy_slopes(const int64_t* indices, const T* advantages, int64_t count, Sums& sums) {
        const ByState<const T> outputs{actor.forward(inputs)};
        const ByState<T> d_outputs{actor.d_output()};
        gather(rollout.actions, indices, rollout.action_size, actions);
        if (rollout.old) gather(rollout.old, indices, rollout.old_size, old);
        const ByState<const T> with{rollout.old ? old.first : nullptr};
        distribution.evaluate(outputs, actions, with, inputs.states, now);
        for (int64_t s = 0; s < inputs.states; ++s) {
            const double log_ratio = now.log_prob[s] - rollout.old_log_prob[indices[s]], ratio = ::exp(log_ratio);
            const Sloped<T> policy = surrogate(static_cast<T>(ratio), advantages[s], terms.clip_range);
            slopes[s] = policy.slope / count;
            sums.policy_loss += rollout.old ? policy.loss + terms.kl_coef * now.kl[s] : policy.loss;
            sums.entropy += now.entropy[s];
            sums.approx_kl += ratio - 1 - log_ratio;
            sums.clipped += ::fabs(ratio - 1) > terms.clip_range;
        }
        const double n = static_cast<double>(count);
        const T d_entropy = static_cast<T>(-terms.ent_coef / n), d_kl = static_cast<T>(terms.kl_coef / n);
        distribution.gradient(d_outputs, actions, with, inputs.states, {slopes, d_entropy, d_kl});
        clear_padding(d_outputs.first, n_outputs);
    }

    // Copies the numbers of some rows, by state.
    void gather(const T* from, const int64_t* indices, int64_t size, ByState<T> to) const {
        for (int64_t s = 0; s < inputs.states; ++s)
            for (int64_t i = 0; i < size; ++i) to[i][s] = from[indices[s] * size + i];
    }

    void value_slopes(const int64_t* indices, int64_t count, Sums& sums) {
        const T* values = critic.forward(inputs);
        T* d_values = critic.d_output();
        for (int64_t i = 0; i < inputs.states; ++i) {
            const int64_t row = indices[i];
            const Sloped<T> value =
                value_error(values[i], rollout.old_values[row], rollout.returns[row], terms.clip_range_vf);
            sums.value_loss += value.loss;
            d_values[i] = static_cast<T>(terms.vf_coef) * (value.slope / count);
        }
        clear_padding(d_values, 1);
    }

    void clear_padding(T* d, int64_t rows) const {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = inputs.states; i < inputs.columns; ++i) d[row * STRIDE + i] = 0;
    }
};

}  // namespace INSTRUCTIONS
