// Products of normal, categorical and Bernoulli distributions, the factors, each over columns of its own.
#pragma once

#include "distributions.hpp"

namespace INSTRUCTIONS {

// A factor may count only with some categories of another one, the choice. Its log-probability then counts where such a
// category was drawn, and its entropy and KL count with the probability of these categories; see hybrid.py.
template <class T> class Hybrid {
  public:
    static constexpr bool READS_LATENT = false, HAS_DEVIATIONS = true;

    Hybrid(const Networks<T>& networks, const Mlp<T>& actor, Memory& memory)
        : count(networks.n_factors), factors(memory.take<Part>(count)), log_probs(memory.take<T>(count)) {
        for (int64_t i = 0; i < count; ++i) {
            const Part part(networks, networks.factors[i], next, actor, memory);
            if (memory.base) factors[i] = part;
            next = part.end();
        }
        for (T** slopes : {&d_log_prob, &d_entropy, &d_kl, &d_reverse_kl}) *slopes = memory.take<T>(STATES);
        d_deviations = memory.take<T>(STATES * next.deviations);
    }

    void begin() {
        for_each([](const Part&, auto& distribution) { distribution.begin(); });
    }

    void begin_kl(const T* old) {
        for_each([&](const Part& part, auto& distribution) { distribution.begin_kl(old + part.first.old()); });
    }

    void end(const Target<T>& target) {
        for_each([&](const Part&, auto& distribution) { distribution.end(target); });
    }

    int64_t n_deviations() const { return next.deviations; }

    void evaluate(ByState<const T> outputs, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Evaluation<T>& all) {
        for_each([&](Part& part, auto& distribution) {
            part.found.reverse_kl = all.reverse_kl ? part.reverse_kl : nullptr;
            distribution.evaluate({outputs[part.first.outputs]}, {actions[part.first.actions]},
                                  rows(old, part.first.old()), states, part.found);
        });
        all.clear(states);
        for (Part* part = factors; part < factors + count; ++part) {
            weigh(*part, actions, old, states);
            const Evaluation<T>& found = part->found;
            for (int64_t s = 0; s < states; ++s) {
                all.log_prob[s] += part->counts[s] * found.log_prob[s];
                all.entropy[s] += part->entropy_weight * part->share[s] * found.entropy[s];
                all.kl[s] += part->old_share[s] * found.kl[s];
            }
            for (int64_t s = 0; all.reverse_kl && s < states; ++s)
                all.reverse_kl[s] += part->share[s] * found.reverse_kl[s];
        }
    }

    void gradient(ByState<T> d_outputs, ByState<const T> actions, ByState<const T> old, int64_t states,
                  const Slopes<T>& d) {
        for_each([&](const Part& part, auto& distribution) {
            distribution.gradient({d_outputs[part.first.outputs]}, {actions[part.first.actions]},
                                  rows(old, part.first.old()), states, slopes_of(part, states, d));
        });
        for (const Part* part = factors; part < factors + count; ++part)
            if (part->outcomes) add_slopes_of_share(*part, d_outputs, states, d);
    }

    void prepare(ByState<const T> outputs, int64_t states) {
        for_each([&](const Part& part, auto& distribution) {
            distribution.prepare({outputs[part.first.outputs]}, states);
        });
    }

    T deviation(int64_t state, int64_t index) const {
        const Part* part = factors;
        while (index >= part->end().deviations) ++part;
        return static_cast<Gaussian<T>*>(part->distribution)->deviation(state, index - part->first.deviations);
    }

    // There is a random number for each output.
    T sample(int64_t state, const T* noise, T* action) const {
        T* log_prob = log_probs;
        for_each([&](const Part& part, auto& distribution) {
            *log_prob++ = distribution.sample(state, noise + part.first.outputs, action + part.first.actions);
        });
        T total = 0;
        for (int64_t i = 0; i < count; ++i)
            if (counts(factors[i], action)) total += log_probs[i];
        return total;
    }

  private:
    // Columns of outputs, of actions and of standard deviations. The parameters of the old distributions have a column
    // for each output and each standard deviation.
    struct Columns {
        int64_t outputs = 0, actions = 0, deviations = 0;
        int64_t old() const { return outputs + deviations; }
    };

    struct Part {
        int64_t kind, choice, size = 0, n_actions;
        T entropy_weight;
        const uint8_t* outcomes;
        Columns first;
        Evaluation<T> found;
        // Whether the factor counts with the action of a state, and with which probabilities it does now and did before.
        T *reverse_kl, *counts, *share, *old_share;
        void* distribution;

        Part(const Networks<T>& networks, const Factor& factor, Columns first, const Mlp<T>& actor, Memory& memory)
            : kind(factor.distribution), choice(factor.choice), entropy_weight(static_cast<T>(factor.entropy_weight)),
              outcomes(factor.outcomes), first(first), found(true, memory), reverse_kl(found.reverse_kl),
              counts(memory.take<T>(STATES)), share(memory.take<T>(STATES)), old_share(memory.take<T>(STATES)) {
            for (int64_t i = 0; i < factor.n_parts; ++i) size += factor.parts[i];
            n_actions = kind == CATEGORICAL ? factor.n_parts : size;
            Networks<T> own = networks;
            own.parts = factor.parts;
            own.n_parts = factor.n_parts;
            if (networks.log_std) own.log_std += first.deviations;
            if (networks.d_log_std) own.d_log_std += first.deviations;
            with([&](auto* none) { distribution = made(none, own, actor, memory); });
        }

        // The first columns of the next factor.
        Columns end() const {
            return {first.outputs + size, first.actions + n_actions, first.deviations + (kind == GAUSSIAN ? size : 0)};
        }

        // Calls a function with a null pointer to the kind of distribution.
        template <class Run> void with(Run run) const {
            switch (kind) {
            case GAUSSIAN: return run(static_cast<Gaussian<T>*>(nullptr));
            case CATEGORICAL: return run(static_cast<Categorical<T>*>(nullptr));
            default: return run(static_cast<Bernoulli<T>*>(nullptr));
            }
        }

        template <class Distribution>
        static void* made(Distribution*, const Networks<T>& networks, const Mlp<T>& actor, Memory& memory) {
            Distribution* place = memory.take<Distribution>(1);
            const Distribution distribution(networks, actor, memory);
            return place ? new (place) Distribution(distribution) : nullptr;
        }
    };

    int64_t count;
    Part* factors;
    T *log_probs, *d_log_prob, *d_entropy, *d_kl, *d_reverse_kl, *d_deviations;
    Columns next;  // The first columns after those of all factors.

    // Calls a function with each factor and its distribution.
    template <class Run> void for_each(Run run) const {
        for (Part* part = factors; part < factors + count; ++part)
            part->with([&](auto* none) { run(*part, *static_cast<decltype(none)>(part->distribution)); });
    }

    static ByState<const T> rows(ByState<const T> matrix, int64_t first) {
        return {matrix ? matrix[first] : nullptr};
    }

    const Part& choice_of(const Part& part) const { return factors[part.choice]; }

    bool counts(const Part& part, const T* action) const {
        return !part.outcomes || part.outcomes[static_cast<int64_t>(action[choice_of(part).first.actions])];
    }

    // The probabilities of a category of the choice in the states that `evaluate` was called for last.
    const T* probabilities(const Part& part, int64_t category) const {
        return static_cast<const Categorical<T>*>(choice_of(part).distribution)->probabilities(category);
    }

    // Finds in which states a factor counts, and how much.
    void weigh(const Part& part, ByState<const T> actions, ByState<const T> old, int64_t states) const {
        for (T* numbers : {part.counts, part.share, part.old_share})
            for (int64_t s = 0; s < states; ++s) numbers[s] = part.outcomes ? T(0) : T(1);
        for (int64_t i = 0; part.outcomes && i < choice_of(part).size; ++i) {
            if (!part.outcomes[i]) continue;
            const T *p = probabilities(part, i), *taken = actions[choice_of(part).first.actions];
            for (int64_t s = 0; s < states; ++s) {
                part.counts[s] += taken[s] == static_cast<T>(i) ? T(1) : T(0);
                part.share[s] += p[s];
            }
            for (int64_t s = 0; old && s < states; ++s)
                part.old_share[s] += exp_of(old[choice_of(part).first.old() + i][s]);
        }
    }

    // Returns dL/d of what was evaluated of a factor.
    Slopes<T> slopes_of(const Part& part, int64_t states, const Slopes<T>& d) const {
        for (int64_t s = 0; s < states; ++s) {
            d_log_prob[s] = d.log_prob[s] * part.counts[s];
            if (d.entropy) d_entropy[s] = d.entropy[s] * part.entropy_weight * part.share[s];
            if (d.kl) d_kl[s] = d.kl[s] * part.old_share[s];
            if (d.reverse_kl) d_reverse_kl[s] = d.reverse_kl[s] * part.share[s];
        }
        const int64_t first = part.first.deviations, size = part.end().deviations - first;
        for (int64_t s = 0; d.deviations && s < states; ++s)
            for (int64_t i = 0; i < size; ++i)
                d_deviations[s * size + i] = d.deviations[s * next.deviations + first + i];
        return {d_log_prob, d.entropy ? d_entropy : nullptr, d.kl ? d_kl : nullptr,
                d.reverse_kl ? d_reverse_kl : nullptr, d.deviations ? d_deviations : nullptr};
    }

    // Adds what the loss depends on the outputs of a choice through the probability that a factor counts.
    void add_slopes_of_share(const Part& part, ByState<T> d_outputs, int64_t states, const Slopes<T>& d) const {
        T d_share[STATES] = {};
        for (int64_t s = 0; d.entropy && s < states; ++s)
            d_share[s] = d.entropy[s] * part.entropy_weight * part.found.entropy[s];
        for (int64_t s = 0; d.reverse_kl && s < states; ++s) d_share[s] += d.reverse_kl[s] * part.found.reverse_kl[s];
        for (int64_t i = 0; i < choice_of(part).size; ++i) {
            const T *p = probabilities(part, i), counts = part.outcomes[i] ? T(1) : T(0);
            T* slope = d_outputs[choice_of(part).first.outputs + i];
            for (int64_t s = 0; s < states; ++s) slope[s] += d_share[s] * p[s] * (counts - part.share[s]);
        }
    }
};

}  // namespace INSTRUCTIONS
