// A policy in states of a rollout: the distributions of actions, and how far they are from the old ones.
namespace INSTRUCTIONS {

// Which outputs of the actor are allowed, with a row for each output and a column for each state.
template <class T> struct Allowed {
    // Replaces the logits of other actions, as in sb3-contrib: low enough for a probability p of 0, and finite, so that
    // p log p is 0 too.
    static constexpr T LOWEST = T(-1e8);

    static void limit(T* outputs, int64_t stride, const uint8_t* allowed, int64_t count) {
        for (int64_t i = 0; i < count; ++i) outputs[i * stride] = allowed[i] ? outputs[i * stride] : LOWEST;
    }
};

template <class T, class Distribution> class Evaluating {
  public:
    Evaluating(const Networks<T>& networks, const Rollout<T>& rollout, Memory& memory)
        : inputs(networks.actor[0].inputs, memory),
          actor(networks.actor, networks.actor_layers, networks.activation, memory),
          distribution(networks, actor, memory), now(memory), log_ratio(memory.take<T>(STATES)), rollout(rollout),
          n_outputs(networks.actor[networks.actor_layers - 1].outputs),
          actions{memory.take<T>(rollout.action_size * STRIDE)}, old{memory.take<T>(rollout.old_size * STRIDE)} {}

    Inputs<T> inputs;
    Mlp<T> actor;
    Distribution distribution;
    Evaluated<T> now;
    T* log_ratio;

    void begin() {
        distribution.begin();
        if (rollout.old) distribution.begin_kl(rollout.old);
    }

    // Reads the features of some rows.
    void take(const int64_t* indices, int64_t count) {
        inputs.gather(rollout.features, indices, count < STATES ? count : STATES);
        inputs.arrange();
    }

    // Evaluates the actions of these rows.
    void evaluate(const int64_t* indices) {
        T* outputs = actor.forward(inputs);
        for (int64_t s = 0; rollout.masks && s < inputs.states; ++s)
            Allowed<T>::limit(outputs + s, STRIDE, rollout.masks + indices[s] * n_outputs, n_outputs);
        gather(rollout.actions, indices, rollout.action_size, actions);
        if (rollout.old) gather(rollout.old, indices, rollout.old_size, old);
        distribution.evaluate({outputs}, actions, with(), inputs.states, now);
        for (int64_t s = 0; s < inputs.states; ++s) log_ratio[s] = now.log_prob[s] - rollout.old_log_prob[indices[s]];
    }

    // Backpropagates to the parameters. Call this after `evaluate`.
    void backward(const int64_t* indices, const Slopes<T>& slopes, bool add) {
        const ByState<T> d_outputs{actor.d_output()};
        distribution.gradient(d_outputs, actions, with(), inputs.states, slopes);
        for (int64_t s = 0; rollout.masks && s < inputs.states; ++s) {
            const uint8_t* allowed = rollout.masks + indices[s] * n_outputs;
            for (int64_t i = 0; i < n_outputs; ++i) d_outputs[i][s] = allowed[i] ? d_outputs[i][s] : T(0);
        }
        clear_padding(d_outputs.first, n_outputs, inputs);
        actor.backward(inputs, add, distribution.d_latent());
    }

    static void clear_padding(T* d, int64_t rows, const Inputs<T>& inputs) {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = inputs.states; i < inputs.columns; ++i) d[row * STRIDE + i] = 0;
    }

  private:
    const Rollout<T>& rollout;
    int64_t n_outputs;
    ByState<T> actions, old;

    ByState<const T> with() const { return {rollout.old ? old.first : nullptr}; }

    // Copies the numbers of some rows, by state.
    void gather(const T* from, const int64_t* indices, int64_t size, ByState<T> to) const {
        for (int64_t s = 0; s < inputs.states; ++s)
            for (int64_t i = 0; i < size; ++i) to[i][s] = from[indices[s] * size + i];
    }
};

// Returns the mean of KL(old || new) over all rows of a rollout.
template <class T, class Distribution> double mean_kl(Evaluating<T, Distribution>& on, int64_t rows) {
    double total = 0;
    on.begin();
    for (int64_t start = 0; start < rows; start += STATES) {
        int64_t indices[STATES];
        for (int64_t s = 0; s < STATES; ++s) indices[s] = start + s;
        on.take(indices, rows - start);
        on.evaluate(indices);
        for (int64_t s = 0; s < on.inputs.states; ++s) total += on.now.kl[s];
    }
    return total / static_cast<double>(rows);
}

}  // namespace INSTRUCTIONS
