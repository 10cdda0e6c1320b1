"""Adam and gradient clipping over one vector of all parameters."""

import math

import numpy as np

from sb3_ppo_variants.errors import NonFiniteError

# The constant in torch.nn.utils.clip_grad_norm_.
NORM_EPSILON = 1e-6


def clip_norm(gradient: np.ndarray, max_norm: float) -> None:
    """Scale a gradient down in place if its norm exceeds ``max_norm``, as ``clip_grad_norm_`` does.

    :raises NonFiniteError: if the gradient is not finite
    """
    norm = float(gradient.dot(gradient)) ** 0.5
    check_norm(norm)
    scale = max_norm / (norm + NORM_EPSILON)
    if not scale >= 1.0:
        gradient *= scale


def check_norm(norm: float) -> None:
    """:raises NonFiniteError: if the norm of a gradient is not finite"""
    if not math.isfinite(norm):
        raise NonFiniteError("gradient of a minibatch", f"not finite: it has the norm {norm}")


class Adam:
    """``torch.optim.Adam`` without weight decay and AMSGrad.

    The moments are stored divided by (1 - beta), which saves one product for each of them:
    m' = beta1 m' + g and v' = beta2 v' + g^2.

    :param first_moment: the moving average of the gradient
    :param second_moment: the moving average of its square
    :param steps: number of steps so far
    """

    def __init__(
        self,
        first_moment: np.ndarray,
        second_moment: np.ndarray,
        steps: int,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
    ):
        self._beta1, self._beta2 = self.betas = betas
        self.scaled_moments = first_moment / (1 - self._beta1), second_moment / (1 - self._beta2)
        self._scratch = np.empty_like(first_moment)
        self.learning_rate = learning_rate
        self.eps = eps
        self.steps = steps

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """The moving averages of the gradient and of its square."""
        m, v = self.scaled_moments
        return m * (1 - self._beta1), v * (1 - self._beta2)

    def step(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Update the parameters in place."""
        self.steps += 1
        step_size = self.learning_rate * (1 - self._beta1) / (1 - self._beta1**self.steps)
        root_scale = ((1 - self._beta2) / (1 - self._beta2**self.steps)) ** 0.5
        (m, v), scratch = self.scaled_moments, self._scratch
        m *= self._beta1
        m += gradient
        np.multiply(gradient, gradient, out=scratch)
        v *= self._beta2
        v += scratch
        # step_size m' / (root_scale sqrt(v') + eps), with root_scale factored out of the sum.
        np.sqrt(v, out=scratch)
        scratch += self.eps / root_scale
        np.divide(m, scratch, out=scratch)
        scratch *= step_size / root_scale
        parameters -= scratch
