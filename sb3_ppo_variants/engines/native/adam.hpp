// The steps of Adam, which may be taken with some of the parameters at a time.
#pragma once

#include "functions.hpp"
#include "interface.hpp"
#include "matrix.hpp"

namespace INSTRUCTIONS {

// torch.optim.Adam without weight decay and AMSGrad, after torch.nn.utils.clip_grad_norm_.
template <class T> class Step {
  public:
    // Begins a step along a gradient with this norm, which is finite.
    Step(Adam<T>& adam, double norm) : adam(adam) {
        constexpr double EPSILON = 1e-6;
        scale = adam.max_norm / (norm + EPSILON);
        const double steps = static_cast<double>(++adam.steps);
        const double step_size = adam.learning_rate * (1 - adam.beta1) / (1 - ::pow(adam.beta1, steps));
        const double root_scale = ::sqrt((1 - adam.beta2) / (1 - ::pow(adam.beta2, steps)));
        // step_size m' / (root_scale sqrt(v') + eps), with root_scale factored out of the sum.
        epsilon = static_cast<T>(adam.epsilon / root_scale);
        rate = static_cast<T>(step_size / root_scale);
    }

    // Scales the gradient of some parameters down if its norm is too large, and takes the step with them.
    void take(int64_t first, int64_t end) const {
        const T beta1 = static_cast<T>(adam.beta1), beta2 = static_cast<T>(adam.beta2);
        T *__restrict parameters = adam.parameters, *__restrict m = adam.first, *__restrict v = adam.second;
        T* __restrict gradient = adam.gradient;
        if (!(scale >= 1.0))
            for (int64_t i = first; i < end; ++i) gradient[i] *= static_cast<T>(scale);
        for (int64_t i = first; i < end; ++i) {
            m[i] = beta1 * m[i] + gradient[i];
            v[i] = beta2 * v[i] + gradient[i] * gradient[i];
            parameters[i] -= rate * (m[i] / (root(v[i]) + epsilon));
        }
    }

  private:
    Adam<T>& adam;
    double scale;
    T epsilon, rate;
};

}  // namespace INSTRUCTIONS
