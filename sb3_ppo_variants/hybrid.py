"""The distribution of hybrid actions: a product of one for each part.

The parts are independent given the observation. Log-probabilities, entropies and KLs are sums over them. A part
may count only with some outcomes of a choice. Then its log-probability is added where the choice had one of these, and
its entropy and KL count with their probability: the chain rules of the entropy and the KL.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral
from typing import Any, TypeAlias

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution, Distribution, make_proba_distribution
from torch import nn

from sb3_ppo_variants.arguments import FINITE
from sb3_ppo_variants.distributions import ActionDistribution, Gaussian, StateGaussianDistribution, Std, distribution_of
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.generators import generators_kept
from sb3_ppo_variants.kl import Divergences, Parameters, divergences_of, known_parameters
from sb3_ppo_variants.layout import AnySpace, HybridLayout, Part, size_of

# The values of ``entropy_weights``, ``only_if`` and ``distribution``.
Weights: TypeAlias = Mapping[str, float]
OnlyIf: TypeAlias = Mapping[str, tuple[str, int | Collection[int]]]
Named: TypeAlias = str | ActionDistribution
# How continuous parts are drawn, by their names.
Continuous: TypeAlias = Mapping[str, ActionDistribution]


@dataclass(frozen=True)
class Condition:
    """Where a part counts.

    :param choice: the index of the part that decides
    :param outcomes: its outcomes with which the other part counts, from 0
    """

    choice: int
    outcomes: tuple[int, ...]

    def share(self, probs: th.Tensor) -> th.Tensor:
        """Compute the probability of the outcomes.

        :param probs: the probabilities of all outcomes, shape ``(batch, n)``
        :return: shape ``(batch,)``
        """
        return probs[:, list(self.outcomes)].sum(dim=1)


class HybridDistribution(DiagGaussianDistribution):
    """A product of distributions, one for each part of a ``Dict`` or ``Tuple`` space.

    Actions are rows, shape ``(batch, n_columns)``. It derives from SB3's Gaussian because SB3's policies give the
    output of a linear layer, and a parameter for the standard deviations, to subclasses of that alone.

    :param layout: the layout of the actions
    :param entropy_weights: the factors of the parts' entropies by name; 1 for parts that are not named
    :param only_if: where parts count, by name: the name of a ``Discrete`` part, and its outcome or outcomes with which
        they do. Parts that are not named always count
    :param continuous: how continuous parts are drawn, by name; SB3's Gaussian for parts that are not named
    :raises ArgumentError: if there is no such part or outcome, or a factor is not a finite number
    """

    def __init__(
        self,
        layout: HybridLayout,
        entropy_weights: Weights | None = None,
        only_if: OnlyIf | None = None,
        continuous: Continuous | None = None,
    ):
        super().__init__(size_of(layout.rows))
        self._layout = layout
        self.entropy_weights = _factors(layout.parts, {} if entropy_weights is None else entropy_weights)
        """The factors of the parts' entropies."""
        self.conditions = _conditions(layout.parts, {} if only_if is None else only_if)
        """Where each part counts; ``None`` for everywhere."""
        drawn = continuous or {}
        self.parts = [
            drawn.get(part.name, Gaussian()).make(size_of(part.space))
            if isinstance(part.space, spaces.Box)
            else self.make_discrete(part.flat)
            for part in layout.parts
        ]
        """The distributions of the parts."""
        sizes = map(_sizes_of, self.parts)
        self._n_outputs, self._n_stds, self._n_parameters = (list(each) for each in zip(*sizes, strict=True))

    def __copy__(self) -> "HybridDistribution":
        """Copy the parts too: they are what :meth:`proba_distribution` sets."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self), parts=list(map(copy, self.parts)))
        return copied

    @staticmethod
    def make_discrete(space: AnySpace) -> Distribution:
        """Create the distribution of a part that is not continuous.

        :param space: its space with one dimension
        """
        return make_proba_distribution(space)

    def proba_distribution_net(  # type: ignore[override]
        self, latent_dim: int, log_std_init: float = 0.0
    ) -> tuple[nn.Module, nn.Parameter | None]:
        """Return a layer for all parts, and the logarithms of the standard deviations of all continuous columns."""
        n_stds = sum(self._n_stds)
        log_std = nn.Parameter(th.full((n_stds,), float(log_std_init))) if n_stds else None
        return nn.Linear(latent_dim, sum(self._n_outputs)), log_std

    def initialize(self, bias: th.Tensor, log_std_init: float) -> None:
        """Let standard deviations that are outputs of a new layer begin near exp(``log_std_init``).

        :param bias: the biases of the layer
        """
        with th.no_grad():
            for part, of_part in zip(self.parts, th.split(bias, self._n_outputs), strict=True):
                if isinstance(part, StateGaussianDistribution):
                    part.initialize(of_part, log_std_init)

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor | None = None) -> "HybridDistribution":
        """Set the outputs of the layer, shape ``(batch, n_outputs)``, and the logarithms of standard deviations."""
        outputs = th.split(mean_actions, self._n_outputs, dim=1)
        log_stds: Sequence[th.Tensor | None] = [None] * len(self.parts)
        if log_std is not None:
            log_stds = th.split(log_std, self._n_stds, dim=-1)
        for part, of_part, of_stds, n_stds in zip(self.parts, outputs, log_stds, self._n_stds, strict=True):
            part.proba_distribution(of_part, *([of_stds] if n_stds else []))
        self._zeros = mean_actions.new_zeros(len(mean_actions))
        return self

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return log-probabilities, shape ``(batch,)``."""
        columns = [actions[:, part.columns] for part in self._layout.parts]
        log_probs = []
        for distribution, part, condition, taken in zip(
            self.parts, self._layout.parts, self.conditions, columns, strict=True
        ):
            log_prob = distribution.log_prob(taken[:, 0] if isinstance(part.space, spaces.Discrete) else taken)
            if condition is not None:
                outcomes = th.as_tensor(condition.outcomes, dtype=actions.dtype, device=actions.device)
                log_prob = log_prob * th.isin(columns[condition.choice][:, 0], outcomes)
            log_probs.append(log_prob)
        return th.stack(log_probs).sum(dim=0)

    def entropy(self) -> th.Tensor | None:
        """Return the sum of the parts' entropies times their factors, shape ``(batch,)``.

        :return: ``None`` if an entropy that counts is not known. As in SB3, the mean of -log pi(a|s) estimates
            that of the whole action then
        """
        parts: Any = self.parts
        entropies = [self._zeros]
        for part, factor, condition in zip(parts, self.entropy_weights, self.conditions, strict=True):
            if factor:
                if (entropy := part.entropy()) is None:
                    return None
                share = 1.0 if condition is None else condition.share(parts[condition.choice].distribution.probs)
                entropies.append(factor * share * entropy)
        return th.stack(entropies).sum(dim=0)

    def sample(self) -> th.Tensor:
        """Draw actions, of which parts that do not count are as good as any."""
        return self._joined([part.sample() for part in self.parts])

    def mode(self) -> th.Tensor:
        """Return the most probable outcome of each part."""
        return self._joined([part.mode() for part in self.parts])

    def _joined(self, of_parts: Sequence[th.Tensor]) -> th.Tensor:
        return th.cat([each.unsqueeze(-1).flatten(1).to(self._zeros.dtype) for each in of_parts], dim=1)

    def divergences(self) -> Divergences:
        """Return the divergences of the product, whose parameters are those of all parts, one after the other."""
        ends = accumulate(self._n_parameters)
        where = [slice(end - n, end) for end, n in zip(ends, self._n_parameters, strict=True)]
        each = [*zip(map(divergences_of, self.parts), where, self.conditions, strict=True)]

        def parameters(distribution: HybridDistribution) -> Parameters:
            return tuple(tensor for part in distribution.parts for tensor in divergences_of(part).parameters(part))

        def kl(old: Parameters, new: Parameters) -> th.Tensor:
            total = []
            for part, at, condition in each:
                # The parameters of a choice are its logits.
                share = 1.0 if condition is None else condition.share(old[where[condition.choice]][0].softmax(dim=1))
                total.append(share * part.kl(old[at], new[at]))
            return th.stack(total).sum(dim=0)

        return Divergences(parameters, kl)


def _sizes_of(distribution: Distribution) -> tuple[int, int, int]:
    """Count what a distribution takes, and set the distribution to anything.

    :return: the numbers of outputs of the layer (means, or logits), of standard deviations that are parameters of the
        policy, and of tensors that define the distribution
    """
    with generators_kept():  # The layer is not used, so its weights must not change those of others.
        made: object = distribution.proba_distribution_net(latent_dim=1)
    layer, log_std = made if isinstance(made, tuple) else (made, None)
    n_stds = 0 if log_std is None else log_std.numel()
    distribution.proba_distribution(th.zeros(1, layer.out_features), *([th.zeros(n_stds)] if n_stds else []))
    return layer.out_features, n_stds, len(known_parameters(distribution) or ())


def continuous_parts(
    parts: Sequence[Part], distribution: Named | Mapping[str, Named] | None = None, std: Std | None = None
) -> dict[str, ActionDistribution]:
    """Find how the continuous parts of actions are drawn, by their names.

    :param parts: all parts of the actions
    :param distribution: what :func:`~sb3_ppo_variants.distributions.distribution_of` takes, for all continuous parts,
        or a dict of them by name; SB3's Gaussian for parts that are not named
    :param std: ``"parameter"`` or ``"state"``, for the names of Gaussians
    :raises ArgumentError: if one is not allowed, or does not fit the parts
    """
    boxes = {part.name: part.space for part in parts if isinstance(part.space, spaces.Box)}
    for name, value in (("distribution", distribution), ("std", std)):
        if value is not None and not boxes:
            raise ArgumentError(f"policy_kwargs[{name!r}] needs a Box among the parts of the actions: leave it out")
    if isinstance(distribution, Mapping):
        if std is not None:
            raise ArgumentError(
                f"policy_kwargs: std={std!r} has no effect beside a dict of distributions; give their standard "
                "deviations there, as in Gaussian(std='state') of sb3_ppo_variants.distributions"
            )
        for name in distribution:
            if not isinstance(parts[_index(parts, "distribution", name)].space, spaces.Box):
                raise ArgumentError(f"policy_kwargs['distribution'][{name!r}]: this part is no Box; leave it out")
        drawn = {name: distribution_of(distribution.get(name, "gaussian")) for name in boxes}
    else:
        drawn = dict.fromkeys(boxes, distribution_of("gaussian" if distribution is None else distribution, std))
    for name, box in boxes.items():
        drawn[name].check(box, use_sde=False, squash_output=False)
    return drawn


def _index(parts: Sequence[Part], entry: str, name: object) -> int:
    names: list[object] = [part.name for part in parts]
    if name not in names:
        known = ", ".join(map(repr, names))
        raise ArgumentError(f"policy_kwargs[{entry!r}] names {name!r}, but the parts of the actions are {known}")
    return names.index(name)


def _factors(parts: Sequence[Part], given: Weights) -> list[float]:
    factors = [1.0] * len(parts)
    for name, factor in given.items():
        FINITE.check(f"policy_kwargs['entropy_weights'][{name!r}]", factor)
        factors[_index(parts, "entropy_weights", name)] = float(factor)
    return factors


def _conditions(parts: Sequence[Part], given: OnlyIf) -> list[Condition | None]:
    allowed = "a dict of pairs by the names of parts: the name of a Discrete part, and one or more of its values"
    conditions: list[Condition | None] = [None] * len(parts)
    for name, pair in given.items():
        entry = f"policy_kwargs['only_if'][{name!r}]"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            refuse(entry, pair, allowed)
        choice, values = pair
        i = _index(parts, "only_if", choice)
        space = parts[i].space
        if not isinstance(space, spaces.Discrete):
            raise ArgumentError(f"{entry} needs a Discrete part, but {choice!r} is {space}")
        known = range(int(space.start), int(space.start + space.n))
        outcomes = [values] if isinstance(values, Integral) else values
        if not isinstance(outcomes, Collection) or not outcomes or not all(outcome in known for outcome in outcomes):
            refuse(entry, pair, f"one or more values of {choice!r}: {[*known]}")
        counted = tuple(sorted({int(outcome) - known.start for outcome in outcomes}))
        conditions[_index(parts, "only_if", name)] = Condition(i, counted)
    for part, condition in zip(parts, conditions, strict=True):
        if condition is not None and conditions[condition.choice] is not None:
            raise ArgumentError(
                f"policy_kwargs['only_if'][{part.name!r}] depends on {parts[condition.choice].name!r}, which itself "
                "depends on another part; allowed: a part that always counts"
            )
    return conditions
