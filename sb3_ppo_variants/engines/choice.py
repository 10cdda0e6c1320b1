"""The engines, which compute rollouts and updates, with what each of them requires, and the choice of one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor, float32, float64

from sb3_ppo_variants.collector import Collector
from sb3_ppo_variants.engines import recognised
from sb3_ppo_variants.engines.images import FirstLayers, view_images
from sb3_ppo_variants.engines.native.collector import NativeCollector
from sb3_ppo_variants.engines.native.networks import Architecture, arrays_of
from sb3_ppo_variants.engines.native.update import NativeUpdate
from sb3_ppo_variants.engines.recognised import ObstacleError, require
from sb3_ppo_variants.engines.reference import TorchCollector, TorchUpdate
from sb3_ppo_variants.engines.sequences import RELIED_ON, FusedUpdate, SequenceUpdate, require_lstms, view_sequences
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.limits import KLAdaptive
from sb3_ppo_variants.objectives import has_term
from sb3_ppo_variants.objectives.ewma import within
from sb3_ppo_variants.update import Update, UpdatePlan


class Reference:
    """Computes rollouts and updates with PyTorch, on any device and for any policy, buffer and objective.

    Other engines derive from it. An engine has no state of its own.
    """

    name = "reference"
    """The name of the engine in tables."""
    path = "reference"
    """``"reference"`` or ``"fast"``."""
    how = "PyTorch computes everything"
    """What the engine does, as a clause."""
    update: Callable[[UpdatePlan], Update] = TorchUpdate
    """The class of updates, of which each update creates one from its plan."""

    def is_for(self, plan: UpdatePlan) -> bool:
        """Whether it is for policies of this kind, such as those with a memory, even if it cannot run the plan."""
        return True

    def check(self, plan: UpdatePlan) -> None:
        """Check that it can compute the rollouts and updates of a plan.

        :raises ObstacleError: if it cannot, with the first reason, as a clause that completes "because ..."
        """

    def collector(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Collector:
        """Begin a rollout.

        :param buffer: the buffer to fill
        :param n_steps: length of the rollout
        """
        return TorchCollector(model, plan.kind, buffer)


class Native(Reference):
    """Computes small networks with the native library, on a CPU."""

    name, path, how = "native", "fast", "the native library computes the networks"
    update: Callable[[UpdatePlan], Update] = NativeUpdate

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory

    def check(self, plan: UpdatePlan) -> None:
        recognised.require_library()
        recognised.require_written_out(plan)
        recognised.require_plain(plan.modules)
        recognised.require_no_hooks(plan)
        recognised.require_parameters(plan)
        if plan.proximal is not None:
            objective = within(plan.objective)
            is_known = has_term(objective) and not objective.numbers_per_sample
            require(is_known, f"an EWMA is around {type(objective).__name__}")
            require(not plan.needs_kl, "an EWMA is combined with a KL of each minibatch")
        first, *_ = parameters = plan.parameters.values()
        require(first.dtype in (float32, float64), f"the native library does not compute in {first.dtype}")
        require(all(map(Tensor.is_contiguous, parameters)), "some parameters are not contiguous in memory")
        architecture = Architecture(plan.kind.policy, arrays_of(plan.parameters))
        recognised.require_optimizers(plan)
        for descent in plan.descents:
            steps = set()
            for state in map(descent.optimizer.state.get, descent.optimizer.param_groups[0]["params"]):
                steps.add(float(state["step"]) if state else 0.0)
            require(len(steps) == 1, "Adam has made more steps with some parameters than with others")
            is_known = descent.adaptive is None or type(descent.adaptive).adapted is KLAdaptive.adapted
            require(is_known, f"{type(descent.adaptive).__name__} overrides adapted")
        for column, is_shared in zip(plan.old_parameters or (), architecture.distribution.shared, strict=False):
            is_same = not is_shared or not (column != column[0]).any()
            require(is_same, "the standard deviation changed during the rollout")

    def collector(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Collector:
        return recognised.UntilChanged(NativeCollector(model, plan, buffer, n_steps), model, plan)


class Images(Reference):
    """Computes the same as the reference engine, convolutions with the native library."""

    name, path, how = "images", "fast", "the native library computes the convolutions"

    def is_for(self, plan: UpdatePlan) -> bool:
        return not plan.kind.has_memory and isinstance(plan.kind.policy.features_extractor, NatureCNN)

    def check(self, plan: UpdatePlan) -> None:
        recognised.require_library()
        recognised.require_written_out(plan)
        recognised.require_plain(plan.modules)
        FirstLayers(plan.kind.policy)
        recognised.require_parameters(plan)
        recognised.require_optimizers(plan)

    def collector(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Collector:
        kind = type(plan.kind)(view_images(plan.kind.policy))
        return recognised.UntilChanged(TorchCollector(model, kind, buffer), model, plan)

    def update(self, plan: UpdatePlan) -> Update:
        return FusedUpdate(replace(plan, kind=type(plan.kind)(view_images(plan.kind.policy))))


class Sequences(Reference):
    """Computes the same as the reference engine, with fewer LSTM calls."""

    name, path, how = "sequences", "fast", "LSTMs and GRUs run over whole sequences"

    def is_for(self, plan: UpdatePlan) -> bool:
        return plan.kind.has_memory

    def check(self, plan: UpdatePlan) -> None:
        recognised.require_classes(plan, RELIED_ON)
        require_lstms(plan.kind.policy)

    def collector(self, model: OnPolicyAlgorithm, plan: UpdatePlan, buffer: RolloutBuffer, n_steps: int) -> Collector:
        return TorchCollector(model, type(plan.kind)(view_sequences(plan.kind.policy)), buffer)

    def update(self, plan: UpdatePlan) -> Update:
        return SequenceUpdate(replace(plan, kind=type(plan.kind)(view_sequences(plan.kind.policy))))


# Fastest first. The last one supports everything.
ENGINES: tuple[Reference, ...] = (Native(), Images(), Sequences(), Reference())


class Choice(NamedTuple):
    """An engine and the reason for choosing it."""

    engine: Reference
    why: str


def choose(plan: UpdatePlan, fast: bool | Literal["auto"]) -> Choice:
    """Choose the fastest engine that can compute the rollouts and updates of a plan.

    :param fast: the model's argument: ``False`` selects the reference engine, ``True`` requires another one
    :raises ArgumentError: if ``fast=True`` is not possible; the message says why
    """
    *others, reference = ENGINES
    if fast is False:
        return Choice(reference, "fast=False")
    obstacles: list[str] = []
    for engine in others:
        if not engine.is_for(plan):
            continue
        try:
            engine.check(plan)
        except ObstacleError as reason:
            obstacles.append(str(reason))
        else:
            return Choice(engine, ", because ".join([engine.how, *obstacles[:1]]))
    why = obstacles[-1]  # An engine that comes later is for fewer policies.
    if fast is True:
        raise ArgumentError(f"fast=True is not possible, because {why}; use fast='auto' or fast=False")
    return Choice(reference, why)
