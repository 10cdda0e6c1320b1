// The C interface. It dispatches each call to the functions for the instruction set in use.
#include <string.h>

#include "interface.hpp"
#include "table.hpp"

#define AS_TEXT(symbol) #symbol
#define VALUE_AS_TEXT(macro) AS_TEXT(macro)

namespace {

struct Named {
    const char* name;
    const Table* table;
};

// Returns the best instruction set that the processor has, or the one with this name.
Named find(const char* name) {
#if defined(PPO_ONLY)  // A build for development, of one instruction set.
    return !name || !strcmp(name, VALUE_AS_TEXT(PPO_ONLY)) ? Named{VALUE_AS_TEXT(PPO_ONLY), &PPO_ONLY::table} : Named{};
#elif defined(__x86_64__) && defined(__GNUC__)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
    if (has_avx512 && (!name || !strcmp(name, "AVX-512"))) return {"AVX-512", &avx512::table};
    if (has_avx2 && (!name || !strcmp(name, "AVX2"))) return {"AVX2", &avx2::table};
#endif
#if !defined(PPO_ONLY)
    return !name || !strcmp(name, "plain") ? Named{"plain", &plain::table} : Named{};
#endif
}

Named chosen = find(nullptr);

}  // namespace

// Returns the digest of interface.hpp, which the build defines.
EXPORTED const char* ppo_interface() { return VALUE_AS_TEXT(PPO_INTERFACE); }

// Returns the name of the instruction set in use.
EXPORTED const char* ppo_instructions() { return chosen.name; }

// Selects the instruction set "AVX-512", "AVX2" or "plain". Returns 0 if the processor does not have it.
EXPORTED int64_t ppo_use(const char* name) {
    const Named found = find(name);
    if (found.table) chosen = found;
    return found.table != nullptr;
}

EXPORTED int64_t ppo_descend_float32(const Networks<float>* networks, const Rollout<float>* rollout,
                                     const Terms* terms, const OwnLosses<float>* own, Proximal<float>* proximal,
                                     Pass* pass, Adam<float>* adam, void* memory) {
    return chosen.table->in_single.descend(*networks, *rollout, *terms, *own, *proximal, *pass, *adam, memory);
}

EXPORTED int64_t ppo_descend_float64(const Networks<double>* networks, const Rollout<double>* rollout,
                                     const Terms* terms, const OwnLosses<double>* own, Proximal<double>* proximal,
                                     Pass* pass, Adam<double>* adam, void* memory) {
    return chosen.table->in_double.descend(*networks, *rollout, *terms, *own, *proximal, *pass, *adam, memory);
}

EXPORTED int64_t ppo_mean_kl_float32(const Networks<float>* networks, const Rollout<float>* rollout, double* kl,
                                     void* memory) {
    return chosen.table->in_single.mean_kl(*networks, *rollout, kl, memory);
}

EXPORTED int64_t ppo_mean_kl_float64(const Networks<double>* networks, const Rollout<double>* rollout, double* kl,
                                     void* memory) {
    return chosen.table->in_double.mean_kl(*networks, *rollout, kl, memory);
}

EXPORTED int64_t ppo_act_float32(const Networks<float>* networks, Acting<float>* acting, void* memory) {
    return chosen.table->in_single.act(*networks, *acting, memory);
}

EXPORTED int64_t ppo_act_float64(const Networks<double>* networks, Acting<double>* acting, void* memory) {
    return chosen.table->in_double.act(*networks, *acting, memory);
}

EXPORTED int64_t ppo_convolve(const Convolutions* all, void* memory) { return chosen.table->convolve(*all, memory); }

EXPORTED int64_t ppo_convolve_backward(const Convolutions* all, void* memory) {
    return chosen.table->convolve_backward(*all, memory);
}

// Python's build tools for Windows export this symbol from every extension; nothing imports this library as a module.
EXPORTED void* PyInit__native() { return nullptr; }
