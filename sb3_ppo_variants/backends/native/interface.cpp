// The C interface: each call goes to the functions for the instructions that the processor has.
#include <string.h>

#include "exported.hpp"
#include "table.hpp"

namespace {

struct Named {
    const char* name;
    const Table* table;
};

// The best that the processor has, or the one of a name.
Named find(const char* name) {
#if defined(__x86_64__) && defined(__GNUC__)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (has_avx512 && (!name || !strcmp(name, "AVX-512"))) return {"AVX-512", &avx512::table};
    if (has_avx2 && (!name || !strcmp(name, "AVX2"))) return {"AVX2", &avx2::table};
#endif
    return !name || !strcmp(name, "plain") ? Named{"plain", &plain::table} : Named{nullptr, nullptr};
}

Named chosen = find(nullptr);

}  // namespace

// The name of the instructions in use.
EXPORTED const char* ppo_instructions() { return chosen.name; }

// Use those of a name, "AVX-512", "AVX2" or "plain"; returns 0 if the processor does not have them.
EXPORTED int64_t ppo_use(const char* name) {
    const Named found = find(name);
    if (found.table) chosen = found;
    return found.table != nullptr;
}

EXPORTED int64_t ppo_descend_float32(const Networks<float>* networks, const Rollout<float>* rollout, const Terms* terms,
                                     const Passes* passes, Adam<float>* adam, Outcome* outcome, void* memory) {
    return chosen.table->in_single.descend(*networks, *rollout, *terms, *passes, *adam, *outcome, memory);
}

EXPORTED int64_t ppo_descend_float64(const Networks<double>* networks, const Rollout<double>* rollout,
                                     const Terms* terms, const Passes* passes, Adam<double>* adam, Outcome* outcome,
                                     void* memory) {
    return chosen.table->in_double.descend(*networks, *rollout, *terms, *passes, *adam, *outcome, memory);
}

EXPORTED int64_t ppo_act_float32(const Networks<float>* networks, Acting<float>* acting, void* memory) {
    return chosen.table->in_single.act(*networks, *acting, memory);
}

EXPORTED int64_t ppo_act_float64(const Networks<double>* networks, Acting<double>* acting, void* memory) {
    return chosen.table->in_double.act(*networks, *acting, memory);
}

// Python's build tools for Windows export this of every extension; nothing imports this library as a module.
EXPORTED void* PyInit__native() { return nullptr; }
