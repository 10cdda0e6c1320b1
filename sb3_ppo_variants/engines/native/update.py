"""Updates with the native library, also of several processes."""

import ctypes
from collections.abc import Mapping, Sequence, Set
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from torch import nn

from sb3_ppo_variants.engines.native import structures
from sb3_ppo_variants.engines.native.library import Calls, library_in_use
from sb3_ppo_variants.engines.native.losses import LossesInPython, terms_of
from sb3_ppo_variants.engines.native.networks import Architecture, Features, arrays_of, run_acting
from sb3_ppo_variants.engines.native.structures import fitting
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import map_parts
from sb3_ppo_variants.objectives import has_term
from sb3_ppo_variants.processes import Processes
from sb3_ppo_variants.processes.moments import normalize_together
from sb3_ppo_variants.proximal import ProximalPolicy, join
from sb3_ppo_variants.rollout import Columns, in_rows
from sb3_ppo_variants.statistics import MinibatchStatistics
from sb3_ppo_variants.update import Descent, DescentResult, UpdatePlan, rollout_normalizer

# The names of Adam's moments.
MOMENTS = ("exp_avg", "exp_avg_sq")
# Multiplications of a minibatch that are worth a thread, less than a millisecond. Threads wait for each other, longest
# for one that has lost its core to another process, so the work must be long compared to that.
WORTH_A_THREAD = 8_000_000
# A weight takes part in a multiplication forward, and in two backward.
MULTIPLICATIONS = 3
# States in a block: as many as the library computes at a time, so that one thread has no more to add up than before.
BLOCK_ROWS = 128
# Parameters that a thread adds up, or takes Adam's step with, at a time: a fraction of its cache.
RANGE_SIZE = 16_384


class Division(NamedTuple):
    """The fields of ``Pass`` that say how minibatches and parameters are divided, and among how many threads."""

    block_rows: int
    range_size: int
    threads: int = 1


def divide_work(trained: Mapping[str, np.ndarray], networks: Sequence[Set[str]], rows: int) -> Division:
    """Divide the minibatches of a descent, if they are worth it. Only the number of threads depends on PyTorch's.

    :param trained: the parameters that the descent trains, by name
    :param networks: the names of the parameters of each network that the descent goes back through
    :param rows: states in a minibatch
    """
    size = sum(parameter.size for parameter in trained.values())
    worth = MULTIPLICATIONS * size * rows // WORTH_A_THREAD
    # Threads have a gradient each of what the descent trains, and no place for other gradients.
    if worth < 2 or not all(names <= trained.keys() for names in networks):
        return Division(rows, size)
    tasks = len(networks) * -(-rows // BLOCK_ROWS)
    return Division(BLOCK_ROWS, RANGE_SIZE, max(1, min(th.get_num_threads(), worth, tasks)))


class TrainedPart:
    """The parameters that a descent trains, as one vector, with their gradient and the state of Adam.

    :param named: all parameters of the policy by name
    :param descent: the descent
    """

    def __init__(self, named: Mapping[str, nn.Parameter], descent: Descent):
        names = {id(parameter): name for name, parameter in named.items()}
        self._named = {names[id(parameter)]: parameter for parameter in descent.parameters}
        parameters, self._all_states = [*self._named.values()], descent.optimizer.state
        # Only store() puts new states into the optimizer, because the update may be undone.
        self._new: dict[th.Tensor, dict[str, th.Tensor]] = {
            each: _new_state(each) for each in parameters if not self._all_states.get(each)
        }
        self._states = [self._new.get(each) or self._all_states[each] for each in parameters]
        self._steps_before = float(self._states[0]["step"])  # The same for all parameters.
        moments = [[state[name] for state in self._states] for name in MOMENTS]
        self._before = [join(parameters).numpy(), *(join(each).numpy() for each in moments)]
        (group,) = descent.optimizer.param_groups
        self._betas = [float(beta) for beta in group["betas"]]
        # The library divides the moments by 1 - beta, which saves it a product for each of them.
        self._scaled = [moment / (1 - beta) for moment, beta in zip(self._before[1:], self._betas, strict=True)]
        self.vector = self._before[0].copy()
        self.gradient = np.zeros_like(self.vector)
        vectors, size = (self.vector, self.gradient, *self._scaled), len(self.vector)
        self.adam = structures.Adam(
            *(fitting(each, "parameters, gradient or moments", self.vector.dtype, size) for each in vectors),
            size,
            int(self._steps_before),
            float(descent.learning_rate),
            *self._betas,
            float(group["eps"]),
            float(descent.max_grad_norm),
        )
        """The part in the form that the library takes."""

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """View the parts of a vector by parameter name, in the parameters' shapes, sharing its memory."""
        views, start = {}, 0
        for name, parameter in self._named.items():
            views[name] = vector[start : start + parameter.numel()].reshape(parameter.shape)
            start += parameter.numel()
        return views

    def store(self) -> None:
        """Leave parameters, gradients and the optimizer as if it had made the steps itself, if there were any."""
        if self.adam.steps == self._steps_before:
            return
        for name, gradient in self.views(self.gradient).items():
            self._named[name].grad = th.from_numpy(gradient.copy())  # A callback may have kept the last one.
        self._all_states.update(self._new)
        moments = [moment * (1 - beta) for moment, beta in zip(self._scaled, self._betas, strict=True)]
        self._write([self.vector, *moments], self.adam.steps)

    def _write(self, vectors: Sequence[np.ndarray], steps: float) -> None:
        """Write the parameters, their moments and the number of steps into the policy and the optimizer."""
        values, *moments = map(self.views, vectors)
        for (name, parameter), state in zip(self._named.items(), self._states, strict=True):
            # Through NumPy, because PyTorch takes twice as long to copy small tensors.
            parameter.detach().numpy()[...] = values[name]
            for moment, views in zip(MOMENTS, moments, strict=True):
                state[moment].detach().numpy()[...] = views[name]
            state["step"].fill_(steps)


def _new_state(parameter: nn.Parameter) -> dict[str, th.Tensor]:
    """Make the initial state of torch's Adam."""
    step = th.tensor(0.0, dtype=th.get_default_dtype(), device="cpu")
    return {"step": step, **{name: th.zeros_like(parameter) for name in MOMENTS}}


class FollowingPolicy:
    """The policy that an EWMA stays close to, which follows the parameters that a descent trains.

    :param plan: the plan of the update
    :param architecture: that of the policy
    :param rollout: the rollout in the form that the library takes
    :param part: what the descent trains
    """

    def __init__(self, plan: UpdatePlan, architecture: Architecture, rollout: structures.Rollout, part: TrainedPart):
        assert plan.proximal is not None and plan.objective.proximal_decay is not None
        self._proximal: ProximalPolicy = plan.proximal
        dtype = part.vector.dtype
        self._average = plan.proximal.average.numpy().astype(dtype)
        self.structure = structures.Proximal(
            structures.as_array([architecture.structure({**arrays_of(plan.parameters), **part.views(self._average)})]),
            self._average,
            np.zeros(rollout.rows, dtype),
            np.zeros((rollout.rows, rollout.old_size), dtype) if plan.objective.needs_kl else None,
            plan.objective.proximal_decay,
            float(plan.proximal.total_weight),
        )
        """The policy in the form that the library takes."""

    def store(self) -> None:
        """Write the average back."""
        self._proximal.average.numpy()[...] = self._average
        self._proximal.total_weight.fill_(self.structure.total_weight)


class NativeUpdate:
    """Updates as :class:`sb3_ppo_variants.engines.reference.TorchUpdate` does, outside the interpreter.

    The constructor reads the policy, its optimizers and the rollout. :meth:`store` writes policy and optimizers back.

    :param plan: the plan of the update
    :raises IndexError: if the rollout has actions that the policy does not have
    :raises ValueError: if the rollout has columns of other shapes than the policy takes
    """

    def __init__(self, plan: UpdatePlan):
        self.plan = plan
        self._parts = {descent.optimizer: TrainedPart(plan.parameters, descent) for descent in plan.descents}
        arrays: dict[str, np.ndarray] = {}
        gradients: dict[str, np.ndarray] = {}
        for part in self._parts.values():
            arrays |= part.views(part.vector)
            gradients |= part.views(part.gradient)
        self.architecture = Architecture.of(plan.kind.policy)
        self.networks = self.architecture.structure(arrays, gradients)
        self.dtype = arrays["action_net.bias"].dtype
        self.advantages = self._read(plan.buffer.advantages)
        if plan.normalize_advantage == "rollout":
            self.advantages = rollout_normalizer(plan.buffer.advantages, plan.processes)(self.advantages)
        self.ordered_advantages = self.advantages.copy()
        """What the structure of the rollout points to. A descent may write the advantages there in another order."""
        self.rollout = self._read_rollout(plan.buffer, arrays.get("log_std"))
        self._old = self.rollout.old, self.rollout.old_size
        if not plan.needs_kl:
            self.rollout.old, self.rollout.old_size = None, 0  # The descents then compute no KL.
        self._proximal: FollowingPolicy | None = None
        if plan.proximal is not None:
            part = self._parts[plan.descents[0].optimizer]
            self._proximal = FollowingPolicy(plan, self.architecture, self.rollout, part)
        self._latest: NativeDescent | None = None

    def _read_rollout(self, buffer: RolloutBuffer, log_std: np.ndarray | None) -> structures.Rollout:
        """Read the rollout in the row order of its buffer, in the type of the networks."""
        architecture, drawn, n = self.architecture, self.architecture.drawn, len(self.advantages)
        observations = map_parts(partial(in_rows, buffer), buffer.observations)
        features = Features(self.plan.kind.policy).compute(observations, self.dtype)
        fitting(features, "features", self.dtype, n, architecture.inputs)
        actions = self._read(buffer.actions, drawn.action_size)
        # The library does not check the actions.
        if not drawn.has(actions):
            raise IndexError("the rollout has actions that the policy does not have")
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        if masks is not None:
            masks = fitting(in_rows(buffer, masks).astype(bool), "masks", bool, n, drawn.outputs)
        parameters = self.plan.old_parameters
        if parameters is None:  # Another loop collected the rollout.
            parameters = self._compute_parameters(features, masks, log_std)
        self.old_parameters = parameters if self.plan.objective.needs_kl else None
        """What an objective may know of the old distributions."""
        self.columns = Columns(buffer, self.old_parameters)
        old = np.ascontiguousarray(np.concatenate([each.numpy() for each in parameters], axis=1), self.dtype)
        fitting(old, "old parameters", self.dtype, n, drawn.old_size)
        log_probs, returns, values = map(self._read, (buffer.log_probs, buffer.returns, buffer.values))
        per_sample = self._numbers_of_term()
        columns = features, actions, log_probs, self.ordered_advantages, returns, values, old, per_sample, masks
        reverse = self.plan.objective.needs_kl  # Objectives may read both directions.
        sizes = actions.shape[1], old.shape[1], 0 if per_sample is None else per_sample.shape[1]
        return structures.Rollout(*columns, n, *sizes, reverse)

    def _numbers_of_term(self) -> np.ndarray | None:
        """Return what the term of the objective takes for each sample, if it takes anything."""
        objective = self.plan.objective.within
        if not (has_term(objective) and objective.numbers_per_sample):
            return None
        found = np.ascontiguousarray(objective.per_sample(self.columns.whole()).numpy(), self.dtype)
        return fitting(found, "per_sample", self.dtype, len(self.advantages), objective.numbers_per_sample)

    def _read(self, array: np.ndarray, *shape: int) -> np.ndarray:
        """Read an array of the buffer with a row of this shape for each state."""
        buffer = self.plan.buffer
        rows = in_rows(buffer, array).reshape(buffer.buffer_size * buffer.n_envs, *shape)
        return np.ascontiguousarray(rows, self.dtype)

    def _compute_parameters(
        self, features: np.ndarray, masks: np.ndarray | None, log_std: np.ndarray | None
    ) -> Parameters:
        """Compute the parameters of the policy's distributions in all states."""
        drawn = self.architecture.drawn
        outputs = np.empty((len(features), drawn.outputs), self.dtype)
        std = np.empty_like(outputs) if drawn.is_state_dependent else None
        results = {"outputs": outputs, "deviations": std}
        run_acting(self.networks, self.dtype, features=features, masks=masks, rows=len(features), **results)
        if std is None and drawn.n_stds:
            assert log_std is not None
            std = np.tile(np.exp(log_std), (len(features), 1))
        return drawn.parameters(outputs, std)

    def descend(self, descent: Descent) -> DescentResult:
        proximal = structures.Proximal()
        if descent.of_policy and self._proximal is not None:
            proximal = self._proximal.structure
        self._latest = NativeDescent(self, descent, self._parts[descent.optimizer], proximal)
        return self._latest.descend()

    def statistics(self) -> MinibatchStatistics:
        return MinibatchStatistics({}) if self._latest is None else self._latest.statistics()

    def store(self) -> None:
        """Write back the policy, the gradients of the last steps and the optimizers."""
        for part in self._parts.values():
            part.store()
        if self._proximal is not None:
            self._proximal.store()

    def kl(self) -> float:
        self.rollout.old, self.rollout.old_size = self._old
        return library_in_use().mean_kl(self.dtype, self.networks, self.rollout)


class NativeDescent:
    """The steps of one descent, each pass made by one call.

    :param update: the update that it belongs to
    :param descent: what it minimises, and how
    :param part: the parameters that it trains
    :param proximal: the policy to stay close to, empty if that is the old one
    """

    def __init__(self, update: NativeUpdate, descent: Descent, part: TrainedPart, proximal: structures.Proximal):
        self._plan, self._descent, self._part = update.plan, descent, part
        self._advantages, self._ordered = update.advantages, update.ordered_advantages
        plan, n = update.plan, len(update.advantages)
        self._permutation = np.zeros(n, np.int64)
        self._per_pass = -(-n // plan.batch_size)
        self._epochs = 0
        self._last_epoch = 0
        self._minibatches = np.zeros((descent.epochs * self._per_pass, len(structures.MEASURED)))
        self._outcome = structures.Outcome(self._minibatches, 0, 1)
        self._calls = Calls(self._outcome)
        # Nothing is averaged in a process that trains alone.
        self._averages = None if plan.processes.size == 1 else Averages(plan.processes, part.gradient, self._calls)
        addresses = (None, None) if self._averages is None else self._averages.addresses
        networks = update.architecture.trained(descent.of_policy, descent.of_value)
        division = divide_work(part.views(part.vector), networks, plan.batch_size)
        pass_ = structures.Pass(self._permutation, *addresses, plan.batch_size, *division, **_limits(descent))
        known = update.architecture.drawn, update.columns, update.old_parameters, self._permutation, update.dtype
        self._own = LossesInPython(plan, *known, self._calls)
        terms = terms_of(plan, descent)
        self._run = library_in_use().descent(
            update.dtype,
            update.networks,
            update.rollout,
            terms,
            self._own.structure,
            proximal,
            pass_,
            part.adam,
            self._outcome,
        )

    def descend(self) -> DescentResult:
        plan, outcome, stop, early = self._plan, self._outcome, self._descent.stop, 0
        # One call per pass, so that an interrupt is noticed after a pass.
        while self._epochs < self._descent.epochs:
            self._epochs += 1
            self._last_epoch, outcome.ended_early = outcome.minibatches, 0
            self._permutation[...] = np.random.permutation(len(self._advantages))
            if self._averages is not None and plan.normalize_advantage == "minibatch":
                ordered = self._advantages[self._permutation]
                self._ordered[...] = normalized(ordered, plan.batch_size, plan.processes)
            self._run()
            self._calls.check()
            if not np.isfinite(outcome.norm):
                raise NonFiniteError("gradient of a minibatch", f"not finite: it has the norm {outcome.norm}")
            early += outcome.ended_early
            if early and stop is not None and stop.ends == "update":
                break
        return DescentResult(self._epochs, self._part.adam.learning_rate, self.statistics(), early, outcome.statistic)

    def statistics(self) -> MinibatchStatistics:
        if self._outcome.minibatches == 0:
            return MinibatchStatistics({})
        names = ["loss"]
        if self._descent.of_policy:
            names += ["policy_loss", "entropy_loss", "approx_kl"]
            names += [] if self._plan.objective.clip_range is None else ["clip_fraction"]
        if self._descent.of_value:
            names += ["value_loss"]
        columns = self._minibatches[: self._outcome.minibatches].T.copy()
        values = {name: columns[structures.MEASURED.index(name)] for name in names}
        return MinibatchStatistics(values, self._last_epoch)


def _limits(descent: Descent) -> dict[str, float]:
    """Return what ends a pass early and what adapts the step size, as the library takes it."""
    stop, adaptive = descent.stop, descent.adaptive
    limits: dict[str, float] = {"limit": inf}
    if stop is not None:
        limits = {"limit": float(stop.limit), "statistic": structures.MEASURED.index(stop.statistic)}
    if adaptive is None:
        return limits
    names = ("desired_kl", "factor", "tolerance", "min_learning_rate", "max_learning_rate")
    return limits | {name: float(getattr(adaptive, name)) for name in names}


def normalized(advantages: np.ndarray, batch_size: int, processes: Processes) -> np.ndarray:
    """Normalise the advantages of consecutive minibatches over all processes, each minibatch by itself.

    :param advantages: the advantages of a pass, shape ``(rows,)``
    :param processes: the processes that share the minibatches
    :return: the normalised advantages, same shape
    """
    whole = len(advantages) - len(advantages) % batch_size
    parts = [advantages[:whole].reshape(-1, batch_size), advantages[None, whole:]]
    made = [normalize_together(th.from_numpy(part), processes).numpy() for part in parts if part.size]
    return np.concatenate([part.ravel() for part in made])


class Averages:
    """Averages over the processes that train together.

    :param processes: the processes
    :param gradient: the gradient, which is averaged in place
    :param calls: makes the functions that average callable
    """

    def __init__(self, processes: Processes, gradient: np.ndarray, calls: Calls):
        self._processes = processes
        self._gradient = th.from_numpy(gradient)
        average_number = calls.address(self._average_number, ctypes.POINTER(structures.NUMBER))
        self.addresses = average_number, calls.address(self._average_gradient)
        """The functions that average a number and the gradient."""

    def _average_number(self, number: "ctypes._Pointer[ctypes.c_double]") -> None:
        number[0] = self._processes.mean(number[0])

    def _average_gradient(self) -> None:
        self._processes.average(self._gradient)
