// A policy in some states: the distributions of actions and how far they are from the old ones, actions drawn from
// them, and values.
#pragma once

#include "distributions.hpp"
#include "interface.hpp"
#include "network.hpp"

namespace INSTRUCTIONS {

// Limits the outputs of actions that are not allowed: low enough for a probability p of 0, whatever the others are, and
// finite, so that p log p is 0 too.
template <class T> void limit(T* outputs, const uint8_t* allowed, int64_t count) {
    constexpr T LOWEST = T(-1e38);
    for (int64_t i = 0; i < count; ++i) outputs[i * STRIDE] = allowed[i] ? outputs[i * STRIDE] : LOWEST;
}

// Evaluates the actions of a rollout.
template <class T, class Distribution> class Evaluator {
  public:
    Evaluator(const Networks<T>& networks, const Rollout<T>& rollout, Memory& memory)
        : inputs(networks.inputs, memory),
          actor(networks.actor, networks.actor_layers, networks.activation, 0, memory),
          distribution(networks, actor, memory), evaluation(rollout.old && rollout.reverse, memory),
          log_ratio(memory.take<T>(STATES)), n_outputs(networks.actor[networks.actor_layers - 1].outputs),
          rollout(rollout), actions{memory.take<T>(rollout.action_size * STRIDE)},
          old{memory.take<T>(rollout.old_size * STRIDE)} {
        if constexpr (Distribution::HAS_DEVIATIONS) n_deviations = distribution.n_deviations();
    }

    Inputs<T> inputs;
    Mlp<T> actor;
    Distribution distribution;
    Evaluation<T> evaluation;
    T* log_ratio;
    int64_t n_outputs, n_deviations = 0;

    // All rows that are evaluated until the next call have old distributions like that of this row, as far as those of
    // all states share something.
    void begin(int64_t row) {
        distribution.begin();
        if (rollout.old) distribution.begin_kl(rollout.old + row * rollout.old_size);
    }

    // Reads the features of some rows.
    void take(const int64_t* indices, int64_t count) {
        inputs.gather(rollout.features, indices, count < STATES ? count : STATES);
        inputs.arrange();
    }

    // Evaluates the actions of these rows.
    void evaluate(const int64_t* indices) {
        outputs = {actor.forward(inputs)};
        for (int64_t s = 0; rollout.masks && s < inputs.states; ++s)
            limit(outputs.first + s, rollout.masks + indices[s] * n_outputs, n_outputs);
        gather(rollout.actions, indices, rollout.action_size, actions);
        if (rollout.old) gather(rollout.old, indices, rollout.old_size, old);
        distribution.evaluate(outputs, actions, old_or_null(), inputs.states, evaluation);
        for (int64_t s = 0; s < inputs.states; ++s)
            log_ratio[s] = evaluation.log_prob[s] - rollout.old_log_prob[indices[s]];
    }

    // Copies the outputs and the standard deviations of the states that were evaluated last, a row for each state, unless
    // the pointers are null.
    void copy_parameters(T* to_outputs, T* to_deviations) const {
        if (to_outputs) transpose(outputs.first, STRIDE, n_outputs, inputs.states, to_outputs, n_outputs);
        if constexpr (Distribution::HAS_DEVIATIONS)
            for (int64_t s = 0; to_deviations && s < inputs.states; ++s)
                for (int64_t i = 0; i < n_deviations; ++i)
                    to_deviations[s * n_deviations + i] = distribution.deviation(s, i);
    }

    // Backpropagates to the parameters. Call this after `evaluate`.
    //
    // `more` has slopes with respect to the outputs, a row for each state, or is null.
    void backward(const int64_t* indices, const Slopes<T>& slopes, const T* more, const Target<T>& target) {
        const ByState<T> d_outputs{actor.d_output()};
        distribution.gradient(d_outputs, actions, old_or_null(), inputs.states, slopes);
        for (int64_t s = 0; more && s < inputs.states; ++s)
            for (int64_t i = 0; i < n_outputs; ++i) d_outputs[i][s] += more[s * n_outputs + i];
        for (int64_t s = 0; rollout.masks && s < inputs.states; ++s) {
            const uint8_t* allowed = rollout.masks + indices[s] * n_outputs;
            for (int64_t i = 0; i < n_outputs; ++i) d_outputs[i][s] = allowed[i] ? d_outputs[i][s] : T(0);
        }
        clear_padding(d_outputs.first, n_outputs, inputs);
        actor.backward(inputs, target);
    }

    static void clear_padding(T* d, int64_t rows, const Inputs<T>& inputs) {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = inputs.states; i < inputs.columns; ++i) d[row * STRIDE + i] = 0;
    }

  private:
    const Rollout<T>& rollout;
    ByState<T> actions, old, outputs = {};

    ByState<const T> old_or_null() const { return {rollout.old ? old.first : nullptr}; }

    // Copies the numbers of some rows, by state.
    void gather(const T* from, const int64_t* indices, int64_t size, ByState<T> to) const {
        for (int64_t s = 0; s < inputs.states; ++s)
            for (int64_t i = 0; i < size; ++i) to[i][s] = from[indices[s] * size + i];
    }
};

// Returns the mean of KL(old || new) over all rows of a rollout.
template <class T, class Distribution> double mean_kl(Evaluator<T, Distribution>& policy, int64_t rows) {
    double total = 0;
    policy.begin(0);
    for (int64_t start = 0; start < rows; start += STATES) {
        int64_t indices[STATES];
        for (int64_t s = 0; s < STATES; ++s) indices[s] = start + s;
        policy.take(indices, rows - start);
        policy.evaluate(indices);
        for (int64_t s = 0; s < policy.inputs.states; ++s) total += policy.evaluation.kl[s];
    }
    return total / static_cast<double>(rows);
}

// Computes outputs of the actor and values in some states, and draws actions.
template <class T, class Distribution> class Actor {
  public:
    Actor(const Networks<T>& networks, Memory& memory)
        : inputs(networks.inputs, memory),
          actor(networks.actor, networks.actor_layers, networks.activation, 0, memory),
          critic(networks.critic, networks.critic_layers, networks.activation, networks.of_critic, memory),
          distribution(networks, actor, memory), n_outputs(networks.actor[networks.actor_layers - 1].outputs) {}

    void run(Acting<T>& acting) {
        acting.is_finite = true;
        distribution.begin();
        for (int64_t start = 0; start < acting.rows; start += STATES) {
            const int64_t left = acting.rows - start;
            inputs.gather(acting.features + start * inputs.width, nullptr, left < STATES ? left : STATES);
            if (inputs.states > FEW || Distribution::READS_LATENT) inputs.arrange();
            const int64_t row = acting.step * acting.rows + start;
            if (acting.outputs) act(acting, start, row);
            if (acting.values) memcpy(acting.values + row, critic.evaluate(inputs), inputs.states * sizeof(T));
        }
    }

  private:
    Inputs<T> inputs;
    Mlp<T> actor, critic;
    Distribution distribution;
    int64_t n_outputs;

    // Acts in the states from `start` on, whose results begin at `row`.
    void act(Acting<T>& acting, int64_t start, int64_t row) {
        T* columns = Distribution::READS_LATENT ? actor.forward(inputs) : actor.evaluate(inputs);
        for (int64_t s = 0; acting.masks && s < inputs.states; ++s)
            limit(columns + s, acting.masks + (start + s) * n_outputs, n_outputs);
        T* outputs = acting.outputs + row * n_outputs;
        transpose(columns, STRIDE, n_outputs, inputs.states, outputs, n_outputs);
        for (int64_t i = 0; i < inputs.states * n_outputs; ++i) acting.is_finite &= ::fabs(outputs[i]) < INFINITY;
        if (!acting.actions && !acting.deviations) return;
        distribution.prepare({columns}, inputs.states);
        if constexpr (Distribution::READS_LATENT)
            for (int64_t s = 0; s < inputs.states; ++s)
                for (int64_t i = 0; i < n_outputs; ++i)
                    acting.deviations[(row + s) * n_outputs + i] = distribution.deviation(s, i);
        const int64_t size = acting.action_size;
        for (int64_t s = 0; acting.actions && s < inputs.states; ++s, ++row) {
            T* action = acting.actions + row * size;
            acting.log_probs[row] = distribution.sample(s, acting.noise + (start + s) * acting.noise_size, action);
            for (int64_t j = 0; j < size; ++j) acting.is_finite &= ::fabs(action[j]) < INFINITY;
            if (acting.clipped) bound(action, acting, acting.clipped + row * size);
        }
    }

    // Computes the action that the environment gets, with the rounding of SB3's `unscale_action`.
    void bound(const T* action, const Acting<T>& acting, T* bounded) const {
        for (int64_t i = 0; i < acting.action_size; ++i) {
            const T low = acting.low[i], high = acting.high[i];
            T number = action[i];
            if (acting.scales) {
                // Without `volatile`, the compiler might not round the product before the sum.
                const volatile T distance = T(0.5) * (number + 1) * (high - low);
                number = low + distance;
            }
            number = number < low ? low : number;
            bounded[i] = number > high ? high : number;
        }
    }
};

}  // namespace INSTRUCTIONS
