// The structures of the C interface. This is their only definition: `library.py` reads it from this file.
//
// All fields are pointers, int64_t or double. One declaration may declare several pointers or several numbers, but only
// one function. T is float or double, the type of all parameters and of the rollout. Arrays are contiguous and matrices
// row-major.
#pragma once

#include <stdint.h>

// Raise this number when a function changes what it does with the same structures. A library that was built from another
// interface is not used.
enum Version { VERSION = 1 };

// Marks a function as part of the C interface.
#if defined(_WIN32)
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

enum Activations { TANH, RELU };
enum Distributions {
    GAUSSIAN, CATEGORICAL, BERNOULLI, STATE_DEPENDENT, STATE_GAUSSIAN, SQUASHED_GAUSSIAN, SQUASHED_STATE_GAUSSIAN, BETA,
    HYBRID
};

// The statistics of a minibatch, in this order.
enum Statistics { POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS, APPROX_KL, CLIP_FRACTION, KL, RATIO_DEVIATION, LOSS, MEASURED };

// The value losses: the squared error, its clipped form with and without the maximum, and Huber's loss. All but the
// first have a constant: the range, or the error from which on the loss is linear.
enum ValueLosses { SQUARED_ERROR, PESSIMISTIC_ERROR, CLIPPED_ERROR, HUBER };

// y = W x + b, with W of shape (outputs, inputs), and the gradients with respect to W and b.
template <class T> struct Layer {
    const T *weight, *bias;
    T *d_weight, *d_bias;
    int64_t inputs, outputs;
};

// A factor of a hybrid distribution: a normal, categorical or Bernoulli one, with parts as `Networks` has them. Its
// columns follow those of the factor before.
struct Factor {
    const int64_t* parts;
    // For each category of the factor with the index `choice`, whether this one counts with it; null if it always does.
    const uint8_t* outcomes;
    int64_t distribution, n_parts, choice;
    double entropy_weight;
};

// Two multilayer perceptrons, each hidden layer followed by the activation, and the distribution of actions.
template <class T> struct Networks {
    const Layer<T> *actor, *critic;
    int64_t actor_layers, critic_layers;
    // The number of features of a state, of which the actor takes the first ones, and the critic those from `of_critic` on.
    int64_t inputs, of_critic;
    int64_t activation, distribution;
    // The number of categories of each part of a categorical distribution. Others have one part: the number of
    // dimensions of the action.
    const int64_t* parts;
    int64_t n_parts;
    // Only for hybrid distributions, which have no parts of their own.
    const Factor* factors;
    int64_t n_factors;
    // Only for normal distributions, also as factors, whose standard deviations are not outputs: their logarithms, or for
    // state-dependent ones those of a matrix with a row for each unit of the actor's last hidden layer, and with one
    // column for all dimensions or one each.
    const T* log_std;
    T* d_log_std;
    // Only for state-dependent noise: SB3's options, and what it adds to variances and to the slope of tanh. Actions are
    // squashed by tanh unless the last is negative.
    int64_t log_std_columns, use_expln;
    double epsilon, squash_epsilon;
};

// A rollout with one row per state.
template <class T> struct Rollout {
    const T *features, *actions;
    const T *old_log_prob, *advantages, *returns, *old_values;
    // The parameters of the old distributions, or null: means and standard deviations, log-probabilities, logits, or
    // those of Beta distributions.
    const T* old;
    // The numbers that the term of the objective takes for each state, or null.
    const T* per_sample;
    // Which actions are allowed, one byte for each output of the actor, or null.
    const uint8_t* masks;
    int64_t rows, action_size, old_size, per_sample_size;
    int64_t reverse;  // Whether KL(new || old) is computed in addition to KL(old || new).
};

// How the advantages of a minibatch are normalised: not at all, by its own mean and standard deviation, or in advance
// by those of the minibatches that processes share. In the last case the advantages are in the order of the pass.
enum Normalizations { NOT_NORMALIZED, NORMALIZED, NORMALIZED_IN_ORDER };

// The objectives that objectives.hpp computes.
enum Objectives {
    CLIPPED, DUAL_CLIPPED, WEIGHTED, ROLLED_BACK, ROLLED_BACK_BY_KL, QUADRATIC, GATED, DISCOVERED, HINGED, CLIPPED_BY_STATE
};

// The terms of the loss. An infinite range means no clipping.
struct Terms {
    const double* constants;  // Those of the objective.
    double clip_range, ent_coef, vf_coef, value_constant;
    int64_t objective, value_loss, advantages, of_policy, of_value;
};

// An objective and a value loss in Python, or only one of them; the function of the other is null. The library fills the
// first arrays with what it knows of a minibatch and calls the function, which fills in the loss and its derivatives. The
// arguments say where in the permutation the minibatch begins, and how many states it has. Outputs and deviations have a
// row for each state. What is null is neither known nor read.
template <class T> struct OwnLosses {
    T *log_ratio, *advantages, *entropy, *kl, *reverse_kl, *outputs, *deviations;
    const T *d_log_ratio, *d_entropy, *d_kl, *d_reverse_kl, *d_outputs, *d_deviations;
    const double* loss;
    void (*evaluate)(int64_t start, int64_t count);
    T* values;
    const T* d_values;
    const double* value_loss;
    void (*evaluate_values)(int64_t start, int64_t count);
};

// The parameters to train, their gradient, and Adam's moments, each divided by (1 - beta).
template <class T> struct Adam {
    T *parameters, *gradient, *first, *second;
    int64_t size, steps;
    double learning_rate, beta1, beta2, epsilon, max_norm;
};

// The policy that an EWMA keeps close to, and its parameters: an average of those that are trained, after each step. For
// other objectives, both pointers are null.
template <class T> struct Proximal {
    const Networks<T>* networks;
    T* average;
    double decay, total_weight;
};

// A pass over the rollout in the order of a permutation of its rows. It ends early once a statistic of a minibatch exceeds
// `limit`. If `desired_kl` is not 0, the step size follows the KL of the minibatches, as KLAdaptive says.
//
// A minibatch is divided into blocks of `block_rows` states, and the parameters into ranges of `range_size`, which
// threads share. The division decides how sums are rounded, and the number of threads does not.
//
// Two functions average over the processes that train together. They are null in a process that trains alone.
struct Pass {
    const int64_t* permutation;
    void (*average)(double* number);
    void (*average_gradient)();
    int64_t batch_size, block_rows, range_size, threads, statistic;
    double limit, desired_kl, factor, tolerance, min_learning_rate, max_learning_rate;
    // The outcome, to which each pass of a descent adds its part.
    double* measured;  // One row per minibatch.
    int64_t minibatches;
    int64_t answered;  // Each function in Python that is called sets this to 1. If it stays 0, it failed; the pass ends.
    int64_t ended_early;  // Whether the pass has ended early because of a statistic, and that statistic.
    double exceeded;
    double norm;  // The norm of the last gradient. The pass ends if it is not finite.
};

// The inputs and outputs of acting. Outputs that are null are not computed. Features, masks and noise are those of one
// step; the outputs have rows for all steps.
template <class T> struct Acting {
    const T* features;
    const uint8_t* masks;
    // Random numbers for each action, or exploration matrices. The same numbers serve all rows if their size is 0.
    const T* noise;
    const T *low, *high;  // The bounds to which actions are clipped, after they are scaled from [-1, 1] if `scales`.
    T *outputs, *deviations, *actions, *clipped, *log_probs, *values;
    int64_t rows, action_size, noise_size, scales;
    int64_t step;
    int64_t is_finite;  // Whether all outputs and actions are finite.
};

// A convolution without padding, followed by ReLU: its parameters, the gradients with respect to them, and its outputs,
// one image after the other. Filters are (size, size, channels).
struct Convolution {
    const float *weight, *bias;
    float *d_weight, *d_bias, *output;
    int64_t filters, size, step;
};

// Images of bytes, and the layers that they pass through. Each image consists of planes, either one for each channel or
// a single one with the channels of a pixel side by side.
struct Convolutions {
    const uint8_t* images;
    const Convolution* layers;
    const float* d_output;  // The gradient with respect to the output of the last layer.
    int64_t count, height, width, channels, planes, n_layers;
};

// Observations with a row for each environment, and the statistics of each column.
struct Normalizing {
    const void* observations;  // In single or double precision.
    double *mean, *variance;
    float* normalized;
    int64_t rows, columns;
    int64_t updates;  // Whether the observations update the statistics.
    double count, epsilon, limit;
};
