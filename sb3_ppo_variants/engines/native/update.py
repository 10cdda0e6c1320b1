"""Updates with the native library, also of several processes."""

from collections.abc import Mapping
from functools import partial
from math import inf
from operator import itemgetter

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from torch import nn

from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.native.called import NATIVE_VALUE_LOSSES, PythonFunctions
from sb3_ppo_variants.engines.native.networks import Architecture, compute_once
from sb3_ppo_variants.errors import NonFiniteError
from sb3_ppo_variants.kl import Parameters
from sb3_ppo_variants.layout import map_parts
from sb3_ppo_variants.losses import ClippedError, Huber
from sb3_ppo_variants.objectives import has_term
from sb3_ppo_variants.objectives.ewma import join
from sb3_ppo_variants.processes import Processes, normalize_together
from sb3_ppo_variants.rollout import Columns, in_rows
from sb3_ppo_variants.statistics import MinibatchStatistics
from sb3_ppo_variants.update import Descent, DescentResult, UpdatePlan, rollout_normalizer

# Multiplications of a minibatch that are worth a thread, less than a millisecond. Threads wait for each other, longest
# for one that has lost its core to another process, so the work must be long compared to that.
WORTH_A_THREAD = 8_000_000
# A weight takes part in a multiplication forward, and in two backward.
MULTIPLICATIONS = 3
# States in a block: as many as the library computes at a time, so that one thread has no more to add up than before.
BLOCK_ROWS = 128
# Parameters that a thread adds up, or takes Adam's step with, at a time: a fraction of its cache.
RANGE_SIZE = 16_384


class TrainedPart:
    """The parameters that a descent trains, as one vector, with their gradient and the state of Adam.

    :param names: the names of all parameters of the policy, by identity
    :param descent: the descent
    """

    def __init__(self, names: Mapping[int, str], descent: Descent):
        self._optimizer, parameters = descent.optimizer, descent.parameters
        self.named = {names[id(parameter)]: parameter for parameter in parameters}
        """The parameters by name."""
        # Only store() puts new states into the optimizer, because the update may be undone.
        self._states = [self._optimizer.state.get(each) or _new_state(each) for each in parameters]
        (group,) = self._optimizer.param_groups
        self._betas = [*map(float, group["betas"])]
        self.vector = join(parameters).numpy()
        self.gradient = np.zeros_like(self.vector)
        # The library divides the moments by 1 - beta, which saves it a product for each of them.
        self._first = join(map(itemgetter("exp_avg"), self._states)).numpy() / (1 - self._betas[0])
        self._second = join(map(itemgetter("exp_avg_sq"), self._states)).numpy() / (1 - self._betas[1])
        self._steps_before = int(self._states[0]["step"])  # The same for all parameters.
        size, dtype = len(self.vector), self.vector.dtype
        self.adam = library.Adam(
            self.vector,
            self.gradient,
            library.fitting(self._first, "moments", dtype, size),
            library.fitting(self._second, "moments", dtype, size),
            size,
            self._steps_before,
            float(descent.learning_rate),
            *self._betas,
            float(group["eps"]),
            float(descent.max_grad_norm),
        )
        """The part in the form that the library takes."""

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """View the parts of a vector by parameter name, in the parameters' shapes, sharing its memory."""
        views, start = {}, 0
        for name, parameter in self.named.items():
            views[name] = vector[start : start + parameter.numel()].reshape(parameter.shape)
            start += parameter.numel()
        return views

    def store(self) -> None:
        """Leave parameters, gradients and the optimizer as if it had made the steps itself, if there were any."""
        if self.adam.steps == self._steps_before:
            return
        values, gradients = self.views(self.vector), self.views(self.gradient)
        firsts = self.views(self._first * (1 - self._betas[0]))
        seconds = self.views(self._second * (1 - self._betas[1]))
        for (name, parameter), state in zip(self.named.items(), self._states, strict=True):
            parameter.grad = th.from_numpy(gradients[name].copy())  # A callback may have kept the last one.
            # Through NumPy, because PyTorch takes twice as long to copy small tensors.
            parameter.detach().numpy()[...] = values[name]
            state["exp_avg"].detach().numpy()[...] = firsts[name]
            state["exp_avg_sq"].detach().numpy()[...] = seconds[name]
            state["step"].fill_(self.adam.steps)
            self._optimizer.state[parameter] = state


def _new_state(parameter: nn.Parameter) -> dict[str, th.Tensor]:
    """Make the initial state of torch's Adam."""
    step = th.tensor(0.0, dtype=th.get_default_dtype(), device="cpu")
    return {"step": step, "exp_avg": th.zeros_like(parameter), "exp_avg_sq": th.zeros_like(parameter)}


class NativeUpdate:
    """Updates as :class:`sb3_ppo_variants.engines.reference.TorchUpdate` does, outside the interpreter.

    The constructor reads the policy, its optimizers and the rollout. :meth:`store` writes policy and optimizers back.

    :param plan: the plan of the update
    :raises IndexError: if the rollout has actions that the policy does not have
    :raises ValueError: if the rollout has columns of other shapes than the policy takes
    """

    def __init__(self, plan: UpdatePlan):
        self._plan, self._library = plan, library.library_in_use()
        names = {id(parameter): name for name, parameter in plan.parameters.items()}
        self._parts = {descent.optimizer: TrainedPart(names, descent) for descent in plan.descents}
        arrays: dict[str, np.ndarray] = {}
        gradients: dict[str, np.ndarray] = {}
        for part in self._parts.values():
            arrays |= part.views(part.vector)
            gradients |= part.views(part.gradient)
        self._architecture = Architecture(plan.kind.policy)
        self._networks = self._architecture.structure(arrays, gradients)
        self._dtype = arrays["action_net.bias"].dtype
        self._advantages = self._read(plan.buffer.advantages)
        if plan.normalize_advantage == "rollout":
            self._advantages = rollout_normalizer(plan.buffer.advantages, plan.processes)(self._advantages)
        # What the structure of the rollout points to. A descent may write the advantages there in another order.
        self._ordered_advantages = self._advantages.copy()
        self._rollout = self._read_rollout(plan.buffer, arrays.get("log_std"))
        self._old = self._rollout.old, self._rollout.old_size
        if not plan.needs_kl:
            self._rollout.old, self._rollout.old_size = None, 0  # The descents then compute no KL.
        self._descent: Descent | None = None

    def _read_rollout(self, buffer: RolloutBuffer, log_std: np.ndarray | None) -> library.Rollout:
        """Read the rollout in the row order of its buffer, in the type of the networks."""
        distribution, n, dtype = self._architecture.distribution, len(self._advantages), self._dtype
        observations = map_parts(partial(in_rows, buffer), buffer.observations)
        features = self._architecture.features.compute(observations, dtype)
        library.fitting(features, "features", dtype, n, self._architecture.features.size)
        actions = self._read(buffer.actions, distribution.action_size)
        if not distribution.has(actions):  # The library does not check them.
            raise IndexError("the rollout has actions that the policy does not have")
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        if masks is not None:
            masks = library.fitting(in_rows(buffer, masks).astype(bool), "masks", bool, n, distribution.outputs)
        parameters = self._plan.old_parameters
        if parameters is None:  # Another loop collected the rollout.
            parameters = self._compute_parameters(features, masks, log_std)
        objective = self._plan.objective
        self._known_parameters = parameters if objective.needs_kl else None
        self._columns = Columns(buffer, self._known_parameters)
        old = np.ascontiguousarray(th.cat(parameters, dim=1).numpy(), dtype)
        library.fitting(old, "old parameters", dtype, n, distribution.outputs + distribution.n_stds)
        per_sample, per_sample_size = None, 0
        if has_term(objective) and objective.numbers_per_sample:
            per_sample_size = objective.numbers_per_sample
            per_sample = np.ascontiguousarray(objective.per_sample(self._columns.whole()).numpy(), dtype)
            library.fitting(per_sample, "per_sample", dtype, n, per_sample_size)
        log_probs, returns, values = self._read(buffer.log_probs), self._read(buffer.returns), self._read(buffer.values)
        columns = features, actions, log_probs, self._ordered_advantages, returns, values, old, per_sample, masks
        # Objectives may read both directions of the KL.
        return library.Rollout(*columns, n, actions.shape[1], old.shape[1], per_sample_size, objective.needs_kl)

    def _read(self, array: np.ndarray, *shape: int) -> np.ndarray:
        """Read an array of the buffer with a row of this shape for each state."""
        buffer = self._plan.buffer
        rows = in_rows(buffer, array).reshape(buffer.buffer_size * buffer.n_envs, *shape)
        return np.ascontiguousarray(rows, self._dtype)

    def _compute_parameters(
        self, features: np.ndarray, masks: np.ndarray | None, log_std: np.ndarray | None
    ) -> Parameters:
        """Compute the parameters of the policy's distributions in all states."""
        distribution, n = self._architecture.distribution, len(features)
        outputs = np.empty((n, distribution.outputs), self._dtype)
        std = np.empty_like(outputs) if distribution.has_matrices else None
        arrays = {"features": features, "masks": masks, "outputs": outputs, "deviations": std}
        compute_once(self._networks, self._dtype, **arrays, rows=n)
        if std is None and distribution.n_stds:
            assert log_std is not None
            std = np.tile(np.exp(log_std), (n, 1))
        return distribution.parameters(outputs, std)

    def descend(self, descent: Descent) -> DescentResult:
        plan, n = self._plan, len(self._advantages)
        permutation = np.zeros(n, np.int64)
        self._descent, self._last_epoch = descent, 0
        self._minibatches = np.zeros((descent.epochs * -(-n // plan.batch_size), len(library.MEASURED)))
        self._outcome = outcome = library.Outcome(self._minibatches, 0, 1)
        part = self._parts[descent.optimizer]
        functions: PythonFunctions | None = None
        averages: tuple[int | None, int | None] = (None, None)
        own = library.OwnLosses()
        has_terms = has_term(plan.objective) and type(plan.value_loss) in NATIVE_VALUE_LOSSES
        if not has_terms or plan.processes.size > 1:
            known = self._architecture.distribution, self._columns, self._known_parameters
            functions = PythonFunctions(plan, *known, permutation, part.gradient, outcome)
            own, averages = functions.own, functions.averages
        pass_ = self._pass(descent, part, permutation, averages)
        arguments = self._networks, self._rollout, self._terms(descent), own, pass_, part.adam, outcome
        run = self._library.with_memory(f"ppo_descend_{self._dtype}", *arguments)
        epochs, early = 0, 0
        # One call per pass, so that an interrupt is noticed after a pass.
        while epochs < descent.epochs:
            epochs += 1
            self._last_epoch, outcome.ended_early = outcome.minibatches, 0
            permutation[...] = np.random.permutation(n)
            if plan.processes.size > 1 and plan.normalize_advantage == "minibatch":
                ordered = self._advantages[permutation]
                self._ordered_advantages[...] = normalized(ordered, plan.batch_size, plan.processes)
            run()
            if functions is not None:
                functions.check()
            if not np.isfinite(outcome.norm):
                raise NonFiniteError("gradient of a minibatch", f"not finite: it has the norm {outcome.norm}")
            early += outcome.ended_early
            if early and descent.stop is not None and descent.stop.ends == "update":
                break
        return DescentResult(epochs, part.adam.learning_rate, self.statistics(), early, outcome.statistic)

    def _pass(
        self, descent: Descent, part: TrainedPart, permutation: np.ndarray, averages: tuple[int | None, int | None]
    ) -> library.Pass:
        """Describe the passes of a descent: what ends them early, and what adapts the step size."""
        division = divide_work(self._architecture, descent, part, self._plan.batch_size)
        limits: dict[str, float] = {"limit": inf}
        if descent.stop is not None:
            statistic = library.MEASURED.index(descent.stop.statistic)
            limits = {"limit": float(descent.stop.limit), "statistic": statistic}
        if descent.adaptive is not None:
            for name in ("desired_kl", "factor", "tolerance", "min_learning_rate", "max_learning_rate"):
                limits[name] = float(getattr(descent.adaptive, name))
        return library.Pass(permutation, *averages, self._plan.batch_size, *division, **limits)

    def _terms(self, descent: Descent) -> library.Terms:
        """Describe the terms of the loss that a descent minimises."""
        plan, objective, constants, term = self._plan, self._plan.objective, None, 0
        normalization = "NOT_NORMALIZED"
        if plan.normalize_advantage == "minibatch":
            normalization = "NORMALIZED" if plan.processes.size == 1 else "NORMALIZED_IN_ORDER"
        if has_term(objective):
            constants, term = np.array(objective.constants, float), library.CONSTANTS["Objectives"][objective.term]
        value_loss, constant = "SQUARED_ERROR", 0.0
        if isinstance(plan.value_loss, ClippedError):
            value_loss = "PESSIMISTIC_ERROR" if plan.value_loss.pessimistic else "CLIPPED_ERROR"
            constant = plan.value_loss.clip_range
        elif isinstance(plan.value_loss, Huber):
            value_loss, constant = "HUBER", plan.value_loss.delta
        return library.Terms(
            constants,
            inf if objective.clip_range is None else float(objective.clip_range),
            float(plan.ent_coef),
            float(plan.vf_coef),
            float(constant),
            term,
            library.CONSTANTS["ValueLosses"][value_loss],
            library.CONSTANTS["Normalizations"][normalization],
            descent.of_policy,
            descent.of_value,
        )

    def statistics(self) -> MinibatchStatistics:
        if self._descent is None or self._outcome.minibatches == 0:
            return MinibatchStatistics({})
        names = ["loss"]
        if self._descent.of_policy:
            names += ["policy_loss", "entropy_loss", "approx_kl"]
            names += [] if self._plan.objective.clip_range is None else ["clip_fraction"]
        if self._descent.of_value:
            names += ["value_loss"]
        columns = self._minibatches[: self._outcome.minibatches].T.copy()
        values = {name: columns[library.MEASURED.index(name)] for name in names}
        return MinibatchStatistics(values, self._last_epoch)

    def store(self) -> None:
        """Write back the policy, the gradients of the last steps and the optimizers."""
        for part in self._parts.values():
            part.store()

    def kl(self) -> float:
        self._rollout.old, self._rollout.old_size = self._old
        kl = library.ctypes.c_double()
        self._library.with_memory(f"ppo_mean_kl_{self._dtype}", self._networks, self._rollout, kl)()
        return kl.value


def divide_work(architecture: Architecture, descent: Descent, part: TrainedPart, rows: int) -> tuple[int, int, int]:
    """Divide the minibatches of a descent, if they are worth it. Only the number of threads depends on PyTorch's.

    :param part: what the descent trains
    :param rows: states in a minibatch
    :return: the rows of a block, the parameters of a range, and the number of threads
    """
    size = len(part.vector)
    worth = MULTIPLICATIONS * size * rows // WORTH_A_THREAD
    layers = [*architecture.actor * descent.of_policy, *architecture.critic * descent.of_value]
    needed = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    if descent.of_policy and architecture.distribution.n_stds:
        needed.add("log_std")
    # Threads have a gradient each of what the descent trains, and no place for other gradients.
    if worth < 2 or not needed <= part.named.keys():
        return rows, size, 1
    tasks = (descent.of_policy + descent.of_value) * -(-rows // BLOCK_ROWS)
    return BLOCK_ROWS, RANGE_SIZE, max(1, min(th.get_num_threads(), worth, tasks))


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
