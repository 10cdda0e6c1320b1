// Network outputs and values in some states, and actions drawn from the outputs.
namespace INSTRUCTIONS {

template <class T, class Distribution> class Actor {
  public:
    Actor(const Networks<T>& networks, Memory& memory)
        : inputs(networks.actor[0].inputs, memory),
          actor(networks.actor, networks.actor_layers, networks.activation, memory),
          critic(networks.critic, networks.critic_layers, networks.activation, memory),
          distribution(networks, actor, memory), n_outputs(networks.actor[networks.actor_layers - 1].outputs),
          action_size(networks.distribution == CATEGORICAL ? networks.n_parts : n_outputs) {}

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
    int64_t n_outputs, action_size;

    // Acts in the states from `start` on, whose results begin at `row`.
    void act(Acting<T>& acting, int64_t start, int64_t row) {
        T* columns = Distribution::READS_LATENT ? actor.forward(inputs) : actor.evaluate(inputs);
        for (int64_t s = 0; acting.masks && s < inputs.states; ++s)
            Allowed<T>::limit(columns + s, STRIDE, acting.masks + (start + s) * n_outputs, n_outputs);
        T* outputs = acting.outputs + row * n_outputs;
        transpose(columns, STRIDE, n_outputs, inputs.states, outputs, n_outputs);
        for (int64_t i = 0; i < inputs.states * n_outputs; ++i) acting.is_finite &= ::fabs(outputs[i]) < INFINITY;
        if (!acting.actions && !acting.deviations) return;
        distribution.prepare({columns}, inputs.states);
        if constexpr (Distribution::READS_LATENT)
            for (int64_t s = 0; s < inputs.states; ++s)
                for (int64_t i = 0; i < n_outputs; ++i)
                    acting.deviations[(row + s) * n_outputs + i] = distribution.deviation(s, i);
        for (int64_t s = 0; acting.actions && s < inputs.states; ++s, ++row) {
            T* action = acting.actions + row * action_size;
            acting.log_probs[row] = distribution.sample(s, acting.noise + (start + s) * acting.noise_size, action);
            for (int64_t j = 0; j < action_size; ++j) acting.is_finite &= ::fabs(action[j]) < INFINITY;
            if (acting.clipped) clip(action, acting, acting.clipped + row * action_size);
        }
    }

    void clip(const T* action, const Acting<T>& acting, T* clipped) const {
        for (int64_t i = 0; i < action_size; ++i) {
            const T number = action[i] < acting.low[i] ? acting.low[i] : action[i];
            clipped[i] = number > acting.high[i] ? acting.high[i] : number;
        }
    }
};

}  // namespace INSTRUCTIONS
