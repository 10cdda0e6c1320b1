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
            const int64_t left = acting.rows - start, row = acting.step * acting.rows + start;
            inputs.gather(acting.features + start * inputs.width, nullptr, left < STATES ? left : STATES);
            if (inputs.states > FEW) inputs.arrange();
            if (acting.outputs) act(acting, row);
            if (acting.values) memcpy(acting.values + row, critic.evaluate(inputs), inputs.states * sizeof(T));
        }
    }

  private:
    Inputs<T> inputs;
    Mlp<T> actor, critic;
    Distribution distribution;
    int64_t n_outputs, action_size;

    void act(Acting<T>& acting, int64_t row) {
        const T* columns = actor.evaluate(inputs);
        T* outputs = acting.outputs + row * n_outputs;
        transpose(columns, STRIDE, n_outputs, inputs.states, outputs, n_outputs);
        for (int64_t i = 0; i < inputs.states * n_outputs; ++i) acting.is_finite &= ::fabs(outputs[i]) < INFINITY;
        if (!acting.actions) return;
        distribution.prepare({columns}, inputs.states);
        for (int64_t i = 0; i < inputs.states; ++i, ++row) {
            T* action = acting.actions + row * action_size;
            acting.log_probs[row] = distribution.sample(i, acting.noise + row * n_outputs, action);
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
