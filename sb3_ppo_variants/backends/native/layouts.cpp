// The layout of the structures of the interface, which Python compares with its own when it loads the library.
#include <stddef.h>
#include <stdint.h>

#include "exported.hpp"
#include "interface.hpp"

namespace {

enum { POINTER, COUNT, NUMBER, END };

// A field of a structure: where it is, and whether it is a pointer, a count or a number. After the fields of a structure
// follows an entry that has the structure's size as its offset.
struct Field {
    const char *structure, *name;
    int64_t offset, kind;
};

template <class P> constexpr int64_t kind(P**) { return POINTER; }
constexpr int64_t kind(int64_t*) { return COUNT; }
constexpr int64_t kind(double*) { return NUMBER; }

#define FIELD(structure, name) \
    {#structure, #name, offsetof(structure, name), kind(static_cast<decltype(structure::name)*>(nullptr))}
#define SIZE(structure) {#structure, "", sizeof(structure), END}

// The structures for double precision have pointers to other numbers, and are otherwise the same.
const Field fields[] = {
    FIELD(Layer<float>, weight), FIELD(Layer<float>, bias), FIELD(Layer<float>, d_weight), FIELD(Layer<float>, d_bias),
    FIELD(Layer<float>, inputs), FIELD(Layer<float>, outputs), SIZE(Layer<float>),
    FIELD(Networks<float>, actor), FIELD(Networks<float>, critic), FIELD(Networks<float>, actor_layers),
    FIELD(Networks<float>, critic_layers), FIELD(Networks<float>, activation), FIELD(Networks<float>, distribution),
    FIELD(Networks<float>, parts), FIELD(Networks<float>, n_parts), FIELD(Networks<float>, log_std),
    FIELD(Networks<float>, d_log_std), SIZE(Networks<float>),
    FIELD(Rollout<float>, features), FIELD(Rollout<float>, actions), FIELD(Rollout<float>, old_log_prob),
    FIELD(Rollout<float>, advantages), FIELD(Rollout<float>, returns), FIELD(Rollout<float>, old_values),
    FIELD(Rollout<float>, old), FIELD(Rollout<float>, rows), FIELD(Rollout<float>, action_size),
    FIELD(Rollout<float>, old_size), SIZE(Rollout<float>),
    FIELD(Terms, clip_range), FIELD(Terms, kl_coef), FIELD(Terms, ent_coef), FIELD(Terms, vf_coef),
    FIELD(Terms, clip_range_vf), FIELD(Terms, advantages), FIELD(Terms, of_policy), FIELD(Terms, of_value), SIZE(Terms),
    FIELD(Adam<float>, parameters), FIELD(Adam<float>, gradient), FIELD(Adam<float>, first), FIELD(Adam<float>, second),
    FIELD(Adam<float>, size), FIELD(Adam<float>, steps), FIELD(Adam<float>, learning_rate), FIELD(Adam<float>, beta1),
    FIELD(Adam<float>, beta2), FIELD(Adam<float>, epsilon), FIELD(Adam<float>, max_norm), SIZE(Adam<float>),
    FIELD(Pass, permutation), FIELD(Pass, average_kl), FIELD(Pass, average_gradient), FIELD(Pass, batch_size),
    FIELD(Pass, most_kl), SIZE(Pass),
    FIELD(Outcome, measured), FIELD(Outcome, minibatches), FIELD(Outcome, averaged), FIELD(Outcome, norm),
    SIZE(Outcome),
    FIELD(Acting<float>, features), FIELD(Acting<float>, noise), FIELD(Acting<float>, low), FIELD(Acting<float>, high),
    FIELD(Acting<float>, outputs), FIELD(Acting<float>, actions), FIELD(Acting<float>, clipped),
    FIELD(Acting<float>, log_probs), FIELD(Acting<float>, values), FIELD(Acting<float>, rows),
    FIELD(Acting<float>, action_size), FIELD(Acting<float>, step), FIELD(Acting<float>, is_finite), SIZE(Acting<float>),
    FIELD(Convolution, weight), FIELD(Convolution, bias), FIELD(Convolution, d_weight), FIELD(Convolution, d_bias),
    FIELD(Convolution, output), FIELD(Convolution, filters), FIELD(Convolution, size), FIELD(Convolution, step),
    SIZE(Convolution),
    FIELD(Convolutions, images), FIELD(Convolutions, rows), FIELD(Convolutions, layers), FIELD(Convolutions, d_output),
    FIELD(Convolutions, count), FIELD(Convolutions, height), FIELD(Convolutions, width), FIELD(Convolutions, channels),
    FIELD(Convolutions, n_layers), SIZE(Convolutions),
    FIELD(Images, bytes), FIELD(Images, rows), FIELD(Images, count), FIELD(Images, height), FIELD(Images, width),
    FIELD(Images, in_planes), SIZE(Images),
    FIELD(Normalizing, observations), FIELD(Normalizing, mean), FIELD(Normalizing, variance),
    FIELD(Normalizing, normalized), FIELD(Normalizing, rows), FIELD(Normalizing, columns), FIELD(Normalizing, updates),
    FIELD(Normalizing, count), FIELD(Normalizing, epsilon), FIELD(Normalizing, limit), SIZE(Normalizing),
    FIELD(Numbers, numbers), FIELD(Numbers, count), SIZE(Numbers),
    {nullptr, nullptr, 0, END},
};

}  // namespace

// Returns the fields of all structures. The last one has no names.
EXPORTED const Field* ppo_layouts() { return fields; }
