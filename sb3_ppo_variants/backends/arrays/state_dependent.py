"""Normal distributions with state-dependent noise (gSDE, https://arxiv.org/abs/2005.05719) over arrays."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_ppo_variants.backends.arrays.distribution import Distribution, Index, check_finite
from sb3_ppo_variants.backends.arrays.gaussian import HALF_LOG_2_PI

# The exploration matrix for a single state, and the matrices of all environments.
Matrices = tuple[np.ndarray, np.ndarray]


class Settings(NamedTuple):
    """The settings of SB3's gSDE distribution."""

    use_expln: bool
    learn_features: bool
    epsilon: float
    squash_epsilon: float | None
    """``None`` if actions are not squashed."""

    @classmethod
    def of(cls, distribution: StateDependentNoiseDistribution) -> "Settings":
        """Return the settings of a distribution."""
        squash = None if distribution.bijector is None else distribution.bijector.epsilon
        return cls(distribution.use_expln, distribution.learn_features, distribution.epsilon, squash)

    def std(self, log_std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the standard deviations of a matrix's entries, and their derivatives with respect to ``log_std``."""
        if not self.use_expln:
            std = np.exp(log_std)
            return std, std
        below = np.exp(np.minimum(log_std, 0.0))
        above = 1.0 + self.epsilon + np.maximum(log_std, 0.0)
        positive = log_std > 0.0
        return np.where(positive, np.log(above) + 1.0, below), np.where(positive, 1.0 / above, below)


def matrices(policy: ActorCriticPolicy) -> Iterator[Matrices]:
    """Yield a policy's exploration matrices, read anew at each step because ``reset_noise`` replaces them."""
    distribution: Any = policy.action_dist
    while True:
        yield distribution.exploration_mat.detach().numpy(), distribution.exploration_matrices.detach().numpy()


class Entries(NamedTuple):
    """The factors of an action's variance: the squared last hidden layer and a matrix of squared deviations."""

    latent: np.ndarray
    latent_squares: np.ndarray
    squares: np.ndarray
    slopes: np.ndarray
    """Half the derivatives of the squares with respect to ``log_std``."""
    learn_features: bool

    @classmethod
    def of(cls, latent: np.ndarray, log_std: np.ndarray, settings: Settings) -> "Entries":
        """Return the factors. All dimensions of the action may share one column of ``log_std``."""
        std, slope = settings.std(log_std)
        return cls(latent, latent * latent, std * std, std * slope, settings.learn_features)

    def columns(self, dimensions: int) -> np.ndarray:
        """Return the squares, with one column per dimension."""
        return self.squares if self.squares.shape[1] == dimensions else np.repeat(self.squares, dimensions, axis=1)


class StateDependent(Distribution):
    """Normal distributions with a standard deviation per state, optionally squashed by tanh.

    :param mean: shape ``(batch, dimensions)``
    :param std: shape ``(batch, dimensions)``
    :param squash_epsilon: SB3's epsilon for squashed actions; ``None`` if actions are not squashed
    :param entries: the factors of ``std``; ``None`` in a record of an earlier policy's distributions
    """

    sees_latent = True

    def __init__(
        self,
        mean: np.ndarray,
        std: np.ndarray,
        squash_epsilon: float | None = None,
        entries: Entries | None = None,
    ):
        self._mean, self._std = mean, std
        self._squash_epsilon = squash_epsilon
        self._entries = entries

    @classmethod
    def of(cls, output: np.ndarray, log_std: np.ndarray, settings: Settings) -> "StateDependent":
        """Return the distributions for means concatenated with the last hidden layer.

        :param output: shape ``(batch, dimensions + latent)``
        :param log_std: shape ``(latent, dimensions)``, or ``(latent, 1)`` if all dimensions share it
        """
        dimensions = output.shape[1] - len(log_std)
        mean, latent = output[:, :dimensions], output[:, dimensions:]
        entries = Entries.of(latent, log_std, settings)
        variance = entries.latent_squares @ entries.columns(dimensions)
        variance += settings.epsilon
        return cls(mean, np.sqrt(variance), settings.squash_epsilon, entries)

    def sample(self, noise: Matrices) -> tuple[np.ndarray, np.ndarray]:
        """mean + latent * matrix, squashed if the distribution is."""
        assert self._entries is not None
        latent, (single, of_envs) = self._entries.latent, noise
        if len(latent) == 1 or len(latent) != len(of_envs):
            actions = self._mean + latent @ single
        else:
            actions = self._mean + np.matmul(latent[:, None], of_envs)[:, 0]
        check_finite(actions)
        if self._squash_epsilon is not None:
            actions = np.tanh(actions)
        log_prob = self.log_prob(actions)
        check_finite(log_prob)
        return actions, log_prob

    def _unsquashed(self, actions: np.ndarray) -> np.ndarray:
        if self._squash_epsilon is None:
            return actions
        limit = 1.0 - float(np.finfo(actions.dtype).eps)
        clipped = np.clip(actions, -limit, limit)
        return 0.5 * (np.log1p(clipped) - np.log1p(-clipped))

    def log_prob(self, actions: np.ndarray) -> np.ndarray:
        """-1/2 z^2 - log std - 1/2 log(2 pi), summed, z = (a - mean) / std; minus the log-derivative of squashing."""
        unsquashed = self._unsquashed(actions)
        z = (unsquashed - self._mean) / self._std
        terms = 0.5 * z * z + np.log(self._std) + HALF_LOG_2_PI
        if self._squash_epsilon is not None:
            squashed = np.tanh(unsquashed)
            terms += np.log(1.0 - squashed * squashed + self._squash_epsilon)
        return -np.add.reduce(terms, axis=1)

    def entropy(self) -> np.ndarray | None:
        """1/2 + 1/2 log(2 pi) + log std, summed; ``None`` for squashed actions."""
        if self._squash_epsilon is not None:
            return None
        return np.add.reduce(np.log(self._std) + (0.5 + HALF_LOG_2_PI), axis=1)

    def _kl_terms(self, old: "StateDependent") -> tuple[np.ndarray, np.ndarray]:
        ratio = old._std / self._std
        return (self._mean - old._mean) / self._std, ratio * ratio

    def kl_from(self, old: "StateDependent") -> np.ndarray:
        """1/2 (shift^2 + v - 1 - log v), summed; shift of the mean in units of std, v ratio of old to new variance."""
        shift, variance_ratio = self._kl_terms(old)
        return 0.5 * np.add.reduce(shift * shift + variance_ratio - 1.0 - np.log(variance_ratio), axis=1)

    def gradient(
        self, actions: np.ndarray, d_log_prob: np.ndarray, d_entropy: float, old: Any, d_kl: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        """dL/d(mean), concatenated with dL/d(latent) if features are learned, and dL/d(log std)."""
        if self._squash_epsilon is not None:  # The entropy is estimated by -log pi(a|s).
            d_log_prob, d_entropy = d_log_prob - d_entropy, 0.0
        z = (self._unsquashed(actions) - self._mean) / self._std
        d_mean = d_log_prob[:, None] * z
        # The gradient with respect to the logarithm of the standard deviation of each action.
        d_log = d_mean * z - d_log_prob[:, None] + d_entropy
        if d_kl is not None:
            shift, variance_ratio = self._kl_terms(old)
            d_shift = d_kl[:, None] * shift
            d_mean += d_shift
            d_log += d_kl[:, None] * (1.0 - variance_ratio) - d_shift * shift
        d_mean /= self._std
        return self._through_entries(d_mean, d_log / (self._std * self._std))

    def _through_entries(self, d_mean: np.ndarray, d_variance: np.ndarray) -> tuple[np.ndarray, ...]:
        """Backpropagate through the factors of the variance.

        :param d_variance: twice the gradient with respect to the variance of each action
        """
        assert self._entries is not None
        entries = self._entries
        d_log_std = entries.slopes * (entries.latent_squares.T @ d_variance)
        if entries.squares.shape[1] == 1:
            d_log_std = np.add.reduce(d_log_std, axis=1, keepdims=True)
        if not entries.learn_features:
            return d_mean, d_log_std
        d_latent = entries.latent * (d_variance @ entries.columns(d_mean.shape[1]).T)
        return np.concatenate([d_mean, d_latent], axis=1), d_log_std

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Return the means and the standard deviations."""
        return self._mean, self._std

    @classmethod
    def of_parameters(cls, *parameters: np.ndarray) -> "StateDependent":
        """Return a record of the distributions with these parameters."""
        mean, std = parameters
        return cls(mean, std)

    def take(self, rows: Index) -> "StateDependent":
        """Return a record of the distributions in some of the states."""
        return StateDependent(self._mean[rows], self._std[rows], self._squash_epsilon)
