// The functions that are compiled for each instruction set. With memory = nullptr a function computes nothing and
// returns how many bytes it needs. The memory must be zeroed.
#pragma once

#include "interface.hpp"

template <class T> struct Functions {
    int64_t (*descend)(const Networks<T>&, const Rollout<T>&, const Terms&, const OwnLosses<T>&, Proximal<T>&, Pass&,
                       Adam<T>&, void*);
    int64_t (*act)(const Networks<T>&, Acting<T>&, void*);
    int64_t (*mean_kl)(const Networks<T>&, const Rollout<T>&, double*, void*);
};

struct Table {
    Functions<float> in_single;
    Functions<double> in_double;
    int64_t (*convolve)(const Convolutions&, void*);
    int64_t (*convolve_backward)(const Convolutions&, void*);
};

namespace plain { extern const Table table; }
namespace avx2 { extern const Table table; }
namespace avx512 { extern const Table table; }
