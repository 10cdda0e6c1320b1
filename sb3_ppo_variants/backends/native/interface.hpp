// What crosses the C interface. `structures.py` has the same structures in the same order; all fields have eight bytes.
//
// T is float or double, the type of all parameters and of the rollout. Arrays are contiguous, matrices in rows.
#pragma once

#include <stdint.h>

// Activations and distributions by their numbers.
enum { TANH, RELU };
enum { GAUSSIAN, CATEGORICAL, BERNOULLI };

// What is measured of a minibatch, in this order.
enum { POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS, APPROX_KL, CLIP_FRACTION, LOSS, MEASURED };

// y = W x + b, with W of shape (outputs, inputs), and the gradients with respect to W and b.
template <class T> struct Layer {
    const T *weight, *bias;
    T *d_weight, *d_bias;
    int64_t inputs, outputs;
};

// Two multilayer perceptrons, each hidden layer followed by the activation, and the distribution of actions.
template <class T> struct Networks {
    const Layer<T> *actor, *critic;
    int64_t actor_layers, critic_layers;
    int64_t activation, distribution;
    // Categories of each part of a categorical distribution; for others one part, the action's dimensions.
    const int64_t* parts;
    int64_t n_parts;
    // Of a Gaussian.
    const T* log_std;
    T* d_log_std;
};

// A row for each state.
template <class T> struct Rollout {
    const T *features, *actions;
    const T *old_log_prob, *advantages, *returns, *old_values;
    // The parameters of the old distributions, or null: means and standard deviations, log-probabilities, or logits.
    const T* old;
    int64_t rows, action_size, old_size;
};

// Whose mean and standard deviation normalise the advantages of a minibatch: nothing's, its own, or those of minibatches
// that processes share, by which they have been normalised in the order of the passes.
enum { NOT_NORMALIZED, NORMALIZED, NORMALIZED_IN_ORDER };

// The terms of the loss. What does not clip has an infinite range.
struct Terms {
    double clip_range, kl_coef, ent_coef, vf_coef, clip_range_vf;
    int64_t advantages, of_policy, of_value;
};

// The parameters that are descended, their gradient, and Adam's moments, each divided by (1 - beta).
template <class T> struct Adam {
    T *parameters, *gradient, *first, *second;
    int64_t size, steps;
    double learning_rate, beta1, beta2, epsilon, max_norm;
};

// Passes over the rollout: a permutation of its rows for each. They end once approx_kl exceeds `most_kl`.
//
// Two functions average over the processes that train together; they are null in a process that trains alone, and
// return 0 if that failed.
struct Passes {
    const int64_t* permutations;
    int64_t (*average_kl)(double* approx_kl);
    int64_t (*average_gradient)();
    int64_t epochs, batch_size;
    double most_kl;
};

// What became of them.
struct Outcome {
    double* measured;  // For each minibatch.
    int64_t minibatches, epochs, failed;
    double norm;  // Of the last gradient; the passes end at one that is not finite.
};

// What actions are drawn with, and what is computed; what is null is not. The features are those of one step, and all
// else has rows for each step.
template <class T> struct Acting {
    const T *features, *noise;
    const T *low, *high;  // What actions are clipped to.
    T *outputs, *actions, *clipped, *log_probs, *values;
    int64_t rows, action_size;
    int64_t step;
    int64_t is_finite;  // Whether all outputs are.
};
