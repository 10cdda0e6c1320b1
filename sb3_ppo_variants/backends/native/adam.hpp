// Gradient clipping and the steps of Adam.
namespace INSTRUCTIONS {

// Scales a gradient down if its norm is too large, as torch.nn.utils.clip_grad_norm_ does. Returns the original norm.
template <class T> double clip_norm(T* gradient, int64_t size, double max_norm) {
    constexpr double EPSILON = 1e-6;
    const double norm = ::sqrt(static_cast<double>(sum_of_squares(gradient, size)));
    const double scale = max_norm / (norm + EPSILON);
    if (!(scale >= 1.0) && norm < INFINITY)
        for (int64_t i = 0; i < size; ++i) gradient[i] *= static_cast<T>(scale);
    return norm;
}

// torch.optim.Adam without weight decay and AMSGrad.
template <class T> void step(Adam<T>& adam) {
    const double steps = static_cast<double>(++adam.steps);
    const double step_size = adam.learning_rate * (1 - adam.beta1) / (1 - ::pow(adam.beta1, steps));
    const double root_scale = ::sqrt((1 - adam.beta2) / (1 - ::pow(adam.beta2, steps)));
    // step_size m' / (root_scale sqrt(v') + eps), with root_scale factored out of the sum.
    const T epsilon = static_cast<T>(adam.epsilon / root_scale), rate = static_cast<T>(step_size / root_scale);
    const T beta1 = static_cast<T>(adam.beta1), beta2 = static_cast<T>(adam.beta2);
    T *__restrict parameters = adam.parameters, *__restrict m = adam.first, *__restrict v = adam.second;
    const T* __restrict gradient = adam.gradient;
    for (int64_t i = 0; i < adam.size; ++i) {
        m[i] = beta1 * m[i] + gradient[i];
        v[i] = beta2 * v[i] + gradient[i] * gradient[i];
        parameters[i] -= rate * (m[i] / (root(v[i]) + epsilon));
    }
}

}  // namespace INSTRUCTIONS
