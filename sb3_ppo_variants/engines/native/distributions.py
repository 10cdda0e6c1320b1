"""Distributions of actions in the form that the library takes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from torch.nn import functional as F

from sb3_ppo_variants.distributions import (
    BetaDistribution,
    SquashedGaussianDistribution,
    SquashedStateGaussianDistribution,
    StateGaussianDistribution,
)
from sb3_ppo_variants.engines.native import structures
from sb3_ppo_variants.engines.recognised import ObstacleError
from sb3_ppo_variants.hybrid import Condition, HybridDistribution
from sb3_ppo_variants.kl import Parameters, divergences_of, is_masked

# Their names in interface.hpp.
DISTRIBUTIONS: Mapping[type[Distribution], str] = {
    BernoulliDistribution: "BERNOULLI",
    BetaDistribution: "BETA",
    CategoricalDistribution: "CATEGORICAL",
    DiagGaussianDistribution: "GAUSSIAN",
    MultiCategoricalDistribution: "CATEGORICAL",
    SquashedGaussianDistribution: "SQUASHED_GAUSSIAN",
    SquashedStateGaussianDistribution: "SQUASHED_STATE_GAUSSIAN",
    StateDependentNoiseDistribution: "STATE_DEPENDENT",
    StateGaussianDistribution: "STATE_GAUSSIAN",
}
# Those with one standard deviation for all states, those of which two outputs belong to each dimension, those whose
# noise is normal, and those that a product may have as factors.
WITH_LOG_STD = {"GAUSSIAN", "SQUASHED_GAUSSIAN"}
OF_TWO_OUTPUTS = {"STATE_GAUSSIAN", "SQUASHED_STATE_GAUSSIAN", "BETA"}
OF_NORMAL_NOISE = {"GAUSSIAN", "STATE_GAUSSIAN", "SQUASHED_GAUSSIAN", "SQUASHED_STATE_GAUSSIAN"}
FACTORS = {"GAUSSIAN", "CATEGORICAL", "BERNOULLI"}
# Arrays of numbers, with a row for each state.
Outputs: TypeAlias = np.ndarray | th.Tensor


class Drawn(ABC):
    """How actions are drawn.

    Everything that it says in numbers of columns is about rows, one for each state.
    """

    outputs: int
    """Columns of the output of the policy network."""
    action_size: int
    """Columns of actions."""
    n_stds: int
    """Columns of standard deviations that are not outputs; 0 if there are none."""
    takes_integers: bool = False
    """Whether actions are integers."""
    is_state_dependent: bool = False
    """Whether this is gSDE, whose noise and standard deviations come from matrices."""

    @property
    def old_size(self) -> int:
        """Columns of the parameters of distributions."""
        return self.outputs + self.n_stds

    @abstractmethod
    def fields(self) -> dict[str, structures.FieldValue]:
        """Return the fields of ``Networks`` that describe the distribution."""

    @abstractmethod
    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        """Draw the random numbers of a rollout, except for gSDE, from PyTorch's generator.

        :return: standard normal numbers, shape ``(n_steps, n_envs, action_size)``, or else standard Gumbel or uniform
            numbers, shape ``(n_steps, n_envs, outputs)``
        """

    @abstractmethod
    def parameters(self, outputs: Outputs, std: Outputs | None) -> Parameters:
        """Return the parameters of distributions as :mod:`sb3_ppo_variants.kl` defines them.

        :param outputs: the outputs of the policy network after masking, shape ``(n, outputs)``
        :param std: the standard deviations that are not outputs, shape ``(n, n_stds)``, if there are any
        """

    @abstractmethod
    def shared(self) -> list[bool]:
        """Return for each of the parameters whether all states share one row."""

    @abstractmethod
    def has(self, actions: np.ndarray) -> bool:
        """Whether these are among its actions, shape ``(n, action_size)``."""


class Single(Drawn):
    """A distribution of one kind.

    :param kind: the name of the distribution in ``interface.hpp``
    :param parts: the number of categories of each part of a categorical action; for others, one entry with the number
        of dimensions
    """

    def __init__(self, kind: str, parts: Sequence[int]):
        self.kind, self.parts = kind, np.array(parts, np.int64)
        self.outputs = int(self.parts.sum()) * (2 if kind in OF_TWO_OUTPUTS else 1)
        self.takes_integers, self.is_state_dependent = kind == "CATEGORICAL", kind == "STATE_DEPENDENT"
        self.action_size = len(self.parts) if self.takes_integers else int(self.parts.sum())
        self.n_stds = self.outputs if kind in WITH_LOG_STD or self.is_state_dependent else 0

    def fields(self) -> dict[str, structures.FieldValue]:
        distribution = structures.CONSTANTS["Distributions"][self.kind]
        return {"distribution": distribution, "parts": self.parts, "n_parts": len(self.parts)}

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        if self.kind in OF_NORMAL_NOISE:
            return th.randn((n_steps, n_envs, self.action_size), dtype=dtype, device="cpu").numpy()
        shape = (n_steps, n_envs, self.outputs)
        if self.kind == "CATEGORICAL":
            return -th.empty(shape, dtype=dtype, device="cpu").exponential_().log_().numpy()
        return th.rand(shape, dtype=dtype, device="cpu").numpy()

    def parameters(self, outputs: Outputs, std: Outputs | None) -> Parameters:
        numbers = th.as_tensor(outputs, device="cpu")
        if self.n_stds:
            return numbers, th.as_tensor(std, device="cpu")
        if self.kind in OF_TWO_OUTPUTS:
            first, second = numbers.chunk(2, dim=1)
            return (F.softplus(first) + 1, F.softplus(second) + 1) if self.kind == "BETA" else (first, second.exp())
        if self.kind == "BERNOULLI":
            return (numbers,)
        return tuple(part.log_softmax(dim=1) for part in th.split(numbers, self.parts.tolist(), dim=1))

    def shared(self) -> list[bool]:
        if self.kind == "CATEGORICAL":
            return [False] * len(self.parts)
        return [False] if self.kind == "BERNOULLI" else [False, self.kind in WITH_LOG_STD]

    def has(self, actions: np.ndarray) -> bool:
        return not self.takes_integers or bool(((actions >= 0) & (actions < self.parts)).all())


class Hybrid(Drawn):
    """A product of independent distributions, each over columns of its own.

    :param factors: the distributions
    :param entropy_weights: the factors of their entropies
    :param conditions: where each counts; ``None`` for everywhere
    """

    def __init__(
        self, factors: Sequence[Single], entropy_weights: Sequence[float], conditions: Sequence[Condition | None]
    ):
        self._factors = factors
        self.outputs, self.action_size, self.n_stds = (
            sum(getattr(factor, name) for factor in factors) for name in ("outputs", "action_size", "n_stds")
        )
        fields = zip(factors, entropy_weights, map(self._fields_of, conditions), strict=True)
        self._structures = structures.as_array(
            [structures.Factor(entropy_weight=weight, **each.fields(), **more) for each, weight, more in fields]
        )

    def _fields_of(self, condition: Condition | None) -> dict[str, structures.FieldValue]:
        if condition is None:
            return {}
        outcomes = np.zeros(self._factors[condition.choice].outputs, np.uint8)
        outcomes[list(condition.outcomes)] = 1
        return {"choice": condition.choice, "outcomes": outcomes}

    def fields(self) -> dict[str, structures.FieldValue]:
        distribution = structures.CONSTANTS["Distributions"]["HYBRID"]
        return {"distribution": distribution, "factors": self._structures, "n_factors": len(self._factors)}

    def draw_noise(self, n_steps: int, n_envs: int, dtype: th.dtype) -> np.ndarray:
        return np.concatenate([factor.draw_noise(n_steps, n_envs, dtype) for factor in self._factors], axis=2)

    def parameters(self, outputs: Outputs, std: Outputs | None) -> Parameters:
        of_outputs = self._divided(outputs, lambda factor: factor.outputs)
        stds = [None] * len(self._factors) if std is None else self._divided(std, lambda factor: factor.n_stds)
        each = zip(self._factors, of_outputs, stds, strict=True)
        return tuple(tensor for factor, output, of_stds in each for tensor in factor.parameters(output, of_stds))

    def shared(self) -> list[bool]:
        return [shared for factor in self._factors for shared in factor.shared()]

    def has(self, actions: np.ndarray) -> bool:
        divided = self._divided(actions, lambda factor: factor.action_size)
        return all(factor.has(columns.numpy()) for factor, columns in zip(self._factors, divided, strict=True))

    def _divided(self, rows: Outputs, size: Callable[[Single], int]) -> Sequence[th.Tensor]:
        return th.split(th.as_tensor(rows, device="cpu"), [*map(size, self._factors)], dim=1)


def drawn_by(distribution: Distribution) -> Drawn:
    """Find out how a distribution of SB3, sb3-contrib or this package draws actions.

    :raises ObstacleError: if the library does not compute it
    """
    if type(distribution) is HybridDistribution:
        factors = [*map(_single, distribution.parts)]
        for factor, part in zip(factors, distribution.parts, strict=True):
            if factor.kind not in FACTORS:
                raise ObstacleError(f"a part of the actions is drawn from a {type(part).__name__}")
        return Hybrid(factors, distribution.entropy_weights, distribution.conditions)
    return _single(distribution)


def _single(distribution: Distribution) -> Single:
    kind = "CATEGORICAL" if is_masked(distribution) else DISTRIBUTIONS.get(type(distribution))
    if kind is None:
        raise ObstacleError(f"actions are drawn from a {type(distribution).__name__}")
    if not divergences_of(distribution).built_in:
        raise ObstacleError(f"a KL was registered for {type(distribution).__name__}")
    # SB3's and sb3-contrib's distributions have either a size or sizes, and Bernoulli's calls its size sizes.
    sizes = getattr(distribution, "action_dims" if hasattr(distribution, "action_dims") else "action_dim")
    return Single(kind, [int(size) for size in np.ravel(sizes)])
