"""Updates with the native library, also of several processes, and of losses in Python."""

import ctypes
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from math import inf
from operator import itemgetter

import numpy as np
import torch as th
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.optim import Optimizer

from sb3_ppo_variants.engines.native import library
from sb3_ppo_variants.engines.native.networks import Architecture, NativeDistribution, arrays_of
from sb3_ppo_variants.engines.reference import parameters_in_rollout
from sb3_ppo_variants.errors import ArgumentError, NonFiniteError
from sb3_ppo_variants.kl import Parameters, divergences_of
from sb3_ppo_variants.layout import map_parts
from sb3_ppo_variants.losses import ClippedError, Huber, SquaredError, ValueLoss, check_loss
from sb3_ppo_variants.objectives import Batch, Objective, has_term
from sb3_ppo_variants.objectives.ewma import ProximalPolicy, within
from sb3_ppo_variants.objectives.objective import OF_DISTRIBUTIONS
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
# PyTorch's name of the nodes of a graph that stand for parameters and other leaves.
LEAF = "torch::autograd::AccumulateGrad"
# The value losses that losses.hpp computes.
NATIVE_VALUE_LOSSES = (SquaredError, ClippedError, Huber)


class TrainedPart:
    """The parameters that a descent trains, as one vector, with their gradient and the state of Adam.

    :param names: the names of all parameters of the policy, by identity
    :param descent: the descent
    """

    @np.errstate(all="ignore")
    def __init__(self, names: Mapping[int, str], descent: Descent):
        self._optimizer, parameters = descent.optimizer, descent.parameters
        self.named = dict(zip(map(names.__getitem__, map(id, parameters)), parameters, strict=True))
        """The parameters by name."""
        # Only store() puts new states into the optimizer, because the update may be undone.
        self._states = [self._optimizer.state.get(each) or _new_state(each) for each in parameters]
        (group,) = self._optimizer.param_groups
        self._betas = [*map(float, group["betas"])]
        self.vector = th.cat([*map(th.flatten, parameters)]).detach().numpy()
        self.gradient = np.zeros_like(self.vector)
        # The library divides the moments by 1 - beta, which saves it a product for each of them.
        self._first = th.cat([*map(th.flatten, map(itemgetter("exp_avg"), self._states))]).numpy()
        self._first /= 1 - self._betas[0]
        self._second = th.cat([*map(th.flatten, map(itemgetter("exp_avg_sq"), self._states))]).numpy()
        self._second /= 1 - self._betas[1]
        self._steps_before = int(self._states[0]["step"])  # The same for all parameters.
        size, dtype = len(self.vector), self.vector.dtype
        for moment in (self._first, self._second):
            library.fitting(moment, "moments", dtype, size)
        self.adam = library.Adam(
            parameters=self.vector, gradient=self.gradient, first=self._first, second=self._second, size=size,
            steps=self._steps_before, learning_rate=float(descent.learning_rate), beta1=self._betas[0],
            beta2=self._betas[1], epsilon=float(group["eps"]), max_norm=float(descent.max_grad_norm),
        )  # fmt: skip
        """The part in the form that the library takes."""

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """View the parts of a vector by parameter name, in the parameters' shapes, sharing its memory."""
        views, start = {}, 0
        for name, parameter in self.named.items():
            views[name] = vector[start : start + parameter.numel()].reshape(parameter.shape)
            start += parameter.numel()
        return views

    @np.errstate(all="ignore")
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
        self._plan = plan
        names = dict(zip(map(id, plan.parameters.values()), plan.parameters, strict=True))
        self._parts: dict[Optimizer, TrainedPart] = {}
        arrays: dict[str, np.ndarray] = {}
        gradients: dict[str, np.ndarray] = {}
        for descent in plan.descents:
            part = self._parts[descent.optimizer] = TrainedPart(names, descent)
            arrays |= part.views(part.vector)
            gradients |= part.views(part.gradient)
        self._architecture = Architecture(plan.kind.policy, arrays, gradients)
        self._networks, self._dtype = self._architecture.structure, arrays["action_net.bias"].dtype
        self._advantages = self._read(plan.buffer.advantages)
        if plan.normalize_advantage == "rollout":
            self._advantages = rollout_normalizer(plan.buffer.advantages, plan.processes)(self._advantages)
        # What the structure of the rollout points to. A descent may write the advantages there in another order.
        self._ordered_advantages = self._advantages.copy()
        self._rollout = self._read_rollout()
        self._old = self._rollout.old, self._rollout.old_size
        if not plan.needs_kl:
            self._rollout.old, self._rollout.old_size = None, 0  # The descents then compute no KL.
        self._proximal = library.Proximal()
        if plan.proximal is not None:
            self._plan = replace(plan, objective=within(plan.objective))
            self._average, self._proximal = self._read_proximal(plan.proximal)

    @np.errstate(all="ignore")
    def _read(self, array: np.ndarray, *shape: int) -> np.ndarray:
        """Read an array of the buffer with a row of this shape for each state, in the type of the networks."""
        buffer = self._plan.buffer
        rows = in_rows(buffer, array).reshape(buffer.buffer_size * buffer.n_envs, *shape)
        return np.ascontiguousarray(rows, self._dtype)

    def _read_rollout(self) -> library.Rollout:
        """Read the rollout in the row order of its buffer."""
        plan, buffer, distribution = self._plan, self._plan.buffer, self._architecture.distribution
        n, dtype, objective = len(self._advantages), self._dtype, plan.objective
        observations = map_parts(partial(in_rows, buffer), buffer.observations)
        features = self._architecture.features.compute(observations, dtype)
        library.fitting(features, "features", dtype, n, self._architecture.features.size)
        actions = self._read(buffer.actions, distribution.action_size)
        if not distribution.has(actions):  # The library does not check them.
            raise IndexError("the rollout has actions that the policy does not have")
        masks: np.ndarray | None = getattr(buffer, "action_masks", None)
        if masks is not None:
            masks = library.fitting(in_rows(buffer, masks).astype(bool), "masks", bool, n, distribution.outputs)
        parameters = plan.old_parameters
        if parameters is None:  # Another loop collected the rollout.
            _, parameters = parameters_in_rollout(plan.kind, buffer)
        self._old_parameters = parameters if objective.needs_kl else None
        old = np.ascontiguousarray(th.cat(parameters, dim=1).numpy(), dtype)
        library.fitting(old, "old parameters", dtype, n, distribution.outputs + distribution.n_stds)
        per_sample, per_sample_size = None, 0
        if has_term(objective) and objective.numbers_per_sample:
            per_sample_size = objective.numbers_per_sample
            batch = Columns(buffer, self._old_parameters).whole()
            per_sample = np.ascontiguousarray(objective.per_sample(batch).numpy(), dtype)
            library.fitting(per_sample, "per_sample", dtype, n, per_sample_size)
        return library.Rollout(
            features=features, actions=actions, old_log_prob=self._read(buffer.log_probs), old=old, masks=masks,
            advantages=self._ordered_advantages, returns=self._read(buffer.returns), per_sample=per_sample,
            old_values=self._read(buffer.values), rows=n, action_size=actions.shape[1], old_size=old.shape[1],
            per_sample_size=per_sample_size, reverse=objective.needs_kl,  # It may read both directions of the KL.
        )  # fmt: skip

    def _read_proximal(self, proximal: ProximalPolicy) -> tuple[np.ndarray, library.Proximal]:
        """Read the policy that an EWMA keeps close to, which follows the parameters that the first descent trains."""
        plan, part = self._plan, self._parts[self._plan.descents[0].optimizer]
        average = proximal.average.numpy().astype(self._dtype)
        library.fitting(average, "average", self._dtype, len(part.vector))
        networks = Architecture(plan.kind.policy, arrays_of(plan.parameters) | part.views(average)).structure
        return average, library.Proximal(
            networks=library.as_array([networks]), average=average, decay=plan.proximal_decay,
            total_weight=float(proximal.total_weight),
        )  # fmt: skip

    def descend(self, descent: Descent) -> DescentResult:
        plan, n, part = self._plan, len(self._advantages), self._parts[descent.optimizer]
        permutation = np.zeros(n, np.int64)
        self._descent, self._last_epoch = descent, 0
        self._measured = np.zeros((descent.epochs * -(-n // plan.batch_size), len(library.MEASURED)))
        division = divide_work(self._architecture, descent, part, plan.batch_size)
        self._pass = pass_ = library.Pass(
            permutation=permutation, batch_size=plan.batch_size, measured=self._measured, answered=1,
            **division, **_limits(descent),
        )  # fmt: skip
        functions: PythonFunctions | None = None
        has_terms = has_term(plan.objective) and type(plan.value_loss) in NATIVE_VALUE_LOSSES
        if not has_terms or plan.processes.size > 1:
            functions = PythonFunctions(plan, self._architecture.distribution, self._old_parameters, permutation, pass_)
            if plan.processes.size > 1:
                pass_.average, pass_.average_gradient = functions.averages(part.gradient)
        own = library.OwnLosses(**({} if functions is None else functions.fields))
        proximal = self._proximal if descent.of_policy else library.Proximal()
        arguments = self._networks, self._rollout, _terms(plan, descent), own, proximal, pass_, part.adam
        run = library.with_memory(f"ppo_descend_{self._dtype}", *arguments)
        epochs, early = 0, 0
        # One call per pass, so that an interrupt is noticed after a pass.
        while epochs < descent.epochs:
            epochs += 1
            self._last_epoch, pass_.ended_early = pass_.minibatches, 0
            permutation[...] = np.random.permutation(n)
            if plan.processes.size > 1 and plan.normalize_advantage == "minibatch":
                ordered = self._advantages[permutation]
                self._ordered_advantages[...] = normalized(ordered, plan.batch_size, plan.processes)
            run()
            if functions is not None and not pass_.answered:
                raise functions.error
            if not np.isfinite(pass_.norm):
                raise NonFiniteError("gradient of a minibatch", f"not finite: it has the norm {pass_.norm}")
            early += pass_.ended_early
            if early and descent.stop is not None and descent.stop.ends == "update":
                break
        return DescentResult(epochs, part.adam.learning_rate, self.statistics(), early, pass_.exceeded)

    def statistics(self) -> MinibatchStatistics:
        if self._pass.minibatches == 0:
            return MinibatchStatistics({})
        names = ["loss"]
        if self._descent.of_policy:
            names += ["policy_loss", "entropy_loss", "approx_kl"]
            names += [] if self._plan.objective.clip_range is None else ["clip_fraction"]
        if self._descent.of_value:
            names += ["value_loss"]
        columns = self._measured[: self._pass.minibatches, [*map(library.MEASURED.index, names)]].T.copy()
        return MinibatchStatistics(dict(zip(names, columns, strict=True)), self._last_epoch)

    def store(self) -> None:
        """Write back the policy, the gradients of the last steps and the optimizers."""
        for part in self._parts.values():
            part.store()
        if self._plan.proximal is not None:
            self._plan.proximal.average.numpy()[...] = self._average
            self._plan.proximal.total_weight.fill_(self._proximal.total_weight)

    def kl(self) -> float:
        self._rollout.old, self._rollout.old_size = self._old
        kl = ctypes.c_double()
        library.with_memory(f"ppo_mean_kl_{self._dtype}", self._networks, self._rollout, kl)()
        return kl.value


def divide_work(architecture: Architecture, descent: Descent, part: TrainedPart, rows: int) -> dict[str, int]:
    """Divide the minibatches of a descent, if they are worth it. Only the number of threads depends on PyTorch's.

    :param part: what the descent trains
    :param rows: states in a minibatch
    :return: the rows of a block, the parameters of a range, and the number of threads
    """
    size = len(part.vector)
    worth = MULTIPLICATIONS * size * rows // WORTH_A_THREAD
    layers = [*architecture.actor] * descent.of_policy + [*architecture.critic] * descent.of_value
    needed = {*map("{}.bias".format, layers)}
    if descent.of_policy and architecture.distribution.n_stds:
        needed.add("log_std")
    # Threads have a gradient each of what the descent trains, and no place for other gradients.
    if worth < 2 or not needed <= part.named.keys():
        return {"block_rows": rows, "range_size": size, "threads": 1}
    tasks = (descent.of_policy + descent.of_value) * -(-rows // BLOCK_ROWS)
    threads = max(1, min(th.get_num_threads(), worth, tasks))
    return {"block_rows": BLOCK_ROWS, "range_size": RANGE_SIZE, "threads": threads}


def _limits(descent: Descent) -> dict[str, float]:
    """Describe what ends the passes of a descent early, and what adapts the step size."""
    limits: dict[str, float] = {"limit": inf}
    if descent.stop is not None:
        limits = {"limit": float(descent.stop.limit), "statistic": library.MEASURED.index(descent.stop.statistic)}
    if descent.adaptive is not None:
        for name in ("desired_kl", "factor", "tolerance", "min_learning_rate", "max_learning_rate"):
            limits[name] = float(getattr(descent.adaptive, name))
    return limits


def _terms(plan: UpdatePlan, descent: Descent) -> library.Terms:
    """Describe the terms of the loss that a descent minimises."""
    objective, value_loss, constants = plan.objective, plan.value_loss, library.CONSTANTS
    terms: dict[str, library.FieldValue] = {"of_policy": descent.of_policy, "of_value": descent.of_value}
    if has_term(objective):
        terms["constants"] = np.array(objective.constants, float)
        terms["objective"] = constants["Objectives"][objective.term]
    if plan.normalize_advantage == "minibatch":
        name = "NORMALIZED" if plan.processes.size == 1 else "NORMALIZED_IN_ORDER"
        terms["advantages"] = constants["Normalizations"][name]
    name, constant = "SQUARED_ERROR", 0.0
    if isinstance(value_loss, ClippedError):
        name = "PESSIMISTIC_ERROR" if value_loss.pessimistic else "CLIPPED_ERROR"
        constant = value_loss.clip_range
    elif isinstance(value_loss, Huber):
        name, constant = "HUBER", value_loss.delta
    return library.Terms(
        clip_range=inf if objective.clip_range is None else float(objective.clip_range), ent_coef=float(plan.ent_coef),
        vf_coef=float(plan.vf_coef), value_loss=constants["ValueLosses"][name], value_constant=float(constant), **terms,
    )  # fmt: skip


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


class PythonFunctions:
    """What the library calls during a pass. Keep this object alive while it makes passes.

    The library calls the objective and the value loss of a plan, as far as it has no terms for them, once per minibatch
    with what it knows of it. It also has numbers and gradients averaged over the processes.

    Exceptions cannot propagate through the library, not even that of an interrupt which arrives before a function has
    begun. A function therefore reports its success in the pass, as the last thing that it does.

    :param plan: the plan of the update
    :param distribution: how its policy draws actions
    :param old_parameters: the parameters of the old distributions, if the objective may read them
    :param permutation: the order of the rows in a pass
    :param pass_: the pass
    """

    def __init__(
        self,
        plan: UpdatePlan,
        distribution: NativeDistribution,
        old_parameters: Parameters | None,
        permutation: np.ndarray,
        pass_: library.Pass,
    ):
        self._plan, self._distribution, self._permutation, self._pass = plan, distribution, permutation, pass_
        self._old_parameters, self._columns = old_parameters, Columns(plan.buffer, old_parameters)
        self._made: list[object] = []
        # The initial value stands for an interrupt that arrives before a function has begun.
        self.error: BaseException = KeyboardInterrupt()
        """The error that ended a pass, if a function failed."""
        self.fields: dict[str, library.FieldValue] = {}
        """The losses in the form that the library takes."""
        rows, dtype = plan.batch_size, next(iter(plan.parameters.values())).detach().numpy().dtype
        calls = library.INTEGER, library.INTEGER
        if not has_term(plan.objective):
            shapes: dict[str, tuple[int, ...]] = {"log_ratio": (), "entropy": ()}
            if plan.objective.needs_kl:
                self._divergences = divergences_of(plan.kind.policy.action_dist)
                shapes |= {"kl": (), "reverse_kl": (), "outputs": (distribution.outputs,)}
                shapes |= {"deviations": (distribution.n_stds,)} if distribution.n_stds else {}
            self._objective, self._advantages = (
                OwnLoss(plan.objective, "policy", shapes, rows, dtype),
                np.zeros(rows, dtype),
            )
            self.fields |= self._objective.fields | {"advantages": self._advantages, "loss": self._objective.loss}
            self.fields["evaluate"] = self._address(self._evaluate, *calls)
        if type(plan.value_loss) not in NATIVE_VALUE_LOSSES:
            self._value_loss = OwnLoss(plan.value_loss, "values", {"values": ()}, rows, dtype)
            self.fields |= self._value_loss.fields | {"value_loss": self._value_loss.loss}
            self.fields["evaluate_values"] = self._address(self._evaluate_values, *calls)

    def _address(self, function: Callable[..., object], *types: type) -> int | None:
        """Return the address of a function for the library.

        :param types: the types of its arguments
        """

        def call(*arguments: object) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.error = error
                return
            self._pass.answered = 1

        made = ctypes.CFUNCTYPE(None, *types)(call)
        self._made.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value

    def averages(self, gradient: np.ndarray) -> tuple[int | None, int | None]:
        """Return the functions that average a number and the gradient over the processes, in place."""
        self._gradient = th.from_numpy(gradient)
        number = ctypes.POINTER(library.NUMBER)
        return self._address(self._average_number, number), self._address(self._average_gradient)

    def _average_number(self, number: "ctypes._Pointer[ctypes.c_double]") -> None:
        number[0] = self._plan.processes.mean(number[0])

    def _average_gradient(self) -> None:
        self._plan.processes.average(self._gradient)

    def _evaluate(self, start: int, count: int) -> None:
        """Evaluate the objective on the minibatch that begins here in the permutation."""
        rows, loss = self._permutation[start : start + count], self._objective

        def read(name: str) -> object:
            if name in ("log_ratio", "entropy", "kl", "reverse_kl"):
                return loss.read(name) if name in loss.fields else None
            if name not in OF_DISTRIBUTIONS:
                return self._columns.read(name, rows, th.from_numpy)
            if self._old_parameters is None:
                return None
            deviations = loss.read("deviations") if self._distribution.n_stds else None
            new = self._distribution.parameters(loss.read("outputs"), deviations)
            return self._divergences.between(name, tuple(column[rows] for column in self._old_parameters), new)

        batch = Batch(None, th.from_numpy(self._advantages[:count].copy()), source=read)
        loss.evaluate(count, partial(self._plan.objective.loss, batch))

    def _evaluate_values(self, start: int, count: int) -> None:
        """Evaluate the value loss on the minibatch that begins here in the permutation."""
        rows, loss, plan = self._permutation[start : start + count], self._value_loss, self._plan
        old_values, returns = (self._columns.read(name, rows, th.from_numpy) for name in ("old_values", "returns"))
        loss.evaluate(count, lambda: plan.value_loss.loss(loss.read("values"), old_values, returns))


class OwnLoss:
    """A loss in Python, and the arrays that it shares with the library.

    Autograd differentiates the loss with respect to what it has read of a minibatch, and the library goes on from there
    to the parameters of the networks.

    :param part: the objective or the value loss
    :param needed: what its loss must depend on, for errors
    :param shapes: what the library knows of a minibatch, by name, with the shape for each state
    :param rows: the number of states in a minibatch
    :param dtype: the type of the networks
    """

    def __init__(
        self, part: Objective | ValueLoss, needed: str, shapes: dict[str, tuple[int, ...]], rows: int, dtype: np.dtype
    ):
        self._part, self._needed = part, needed
        known = {name: np.zeros((rows, *shape), dtype) for name, shape in shapes.items()}
        self.fields = known | {f"d_{name}": np.zeros_like(array) for name, array in known.items()}
        """The arrays that the library fills, and those that it reads: the derivatives with respect to them."""
        self.loss = np.zeros(1)
        """The loss of the last minibatch."""
        self._written: Set[str] = set()

    def read(self, name: str) -> th.Tensor:
        """Read what the library knows of the minibatch."""
        if name not in self._leaves:
            self._leaves[name] = th.from_numpy(self.fields[name][: self._count].copy()).requires_grad_()
        return self._leaves[name]

    def evaluate(self, count: int, compute: Callable[[], th.Tensor]) -> None:
        """Evaluate a minibatch of so many states with a function that reads what it needs."""
        self._count, self._leaves = count, dict[str, th.Tensor]()
        with th.enable_grad():
            loss = compute()
        check_loss(loss, self._part, self._needed)
        leaves = self._leaves
        if not self._written:  # In the first minibatch, which the others are like.
            _check_leaves(loss, self._part, leaves.values())
        self.loss[0] = loss.item()
        found = zip(leaves, th.autograd.grad(loss, [*leaves.values()], allow_unused=True), strict=True)
        slopes = {name: slope.numpy() for name, slope in found if slope is not None}
        for name in self._written - slopes.keys():
            self.fields[f"d_{name}"][:] = 0.0
        for name, array in slopes.items():
            self.fields[f"d_{name}"][:count] = array
        self._written = slopes.keys()


def _check_leaves(loss: th.Tensor, part: Objective | ValueLoss, leaves: Iterable[th.Tensor]) -> None:
    """Check that a loss depends on parameters only through what it has read of the minibatch.

    :param leaves: what it has read, before anything was computed from it
    :raises ArgumentError: if there is another way
    """
    seen = {get_gradient_edge(leaf).node for leaf in leaves}
    nodes = [get_gradient_edge(loss).node]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        if node.name() == LEAF:
            raise ArgumentError(
                f"{type(part).__name__}.loss depends on parameters in another way than through the minibatch, which "
                "the native library does not follow: pass fast=False"
            )
        seen.add(node)
        nodes += [source for source, _ in node.next_functions if source is not None]
