"""Checks of what a model is given: its class, its arguments and its environment, also while it learns."""

import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_ppo_variants.arguments import LEARN_RULES, check_arguments
from sb3_ppo_variants.envs import masks
from sb3_ppo_variants.envs.outputs import LARGEST, OutputCheck, checked_outputs
from sb3_ppo_variants.errors import ArgumentError, EnvOutputError, GuardError, NonFiniteError
from sb3_ppo_variants.generators import generators_kept
from sb3_ppo_variants.interrupts import interrupts_can_be_held
from sb3_ppo_variants.layout import AnySpace, is_hybrid, parts_of
from sb3_ppo_variants.losses import ValueLoss, check_fixed
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.objectives.ewma import within
from sb3_ppo_variants.policies.kind import kind_of, of_first_state
from sb3_ppo_variants.processes import find_normalizations
from sb3_ppo_variants.saving import SavedAlgorithm
from sb3_ppo_variants.statistics import check_finite_parameters
from sb3_ppo_variants.update import UpdatePlan, parameters_in

ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
# How many calls of ``predict`` in a row without a state are too many for a policy with a memory.
FORGOTTEN = 5
# The aliases that say which observations they are for. An alias of a subclass may stand for any policy.
ALIAS = re.compile(r"(Maskable)?(Mlp|Cnn|MultiInput)(Lstm)?Policy")


def check_objective(objective: Objective, policy: ActorCriticPolicy) -> None:
    """Check that an objective is not learned, and let it check the distribution of a policy's actions.

    :raises ArgumentError: if it is, or does not know the distribution; an objective of a user may raise something else
    """
    check_fixed(within(objective))
    if type(objective).check_distribution is Objective.check_distribution:
        return
    with th.no_grad(), generators_kept():
        objective.check_distribution(of_first_state(policy)[0])


def check_coefficients(owner: Objective | ValueLoss, taken: Set[str]) -> None:
    """Check that no coefficient has the name of another value that is logged.

    :raises ArgumentError: if one has
    """
    both = sorted(taken & owner.coefficients().keys())
    if both:
        raise ArgumentError(
            f"{type(owner).__name__}.coefficients returned a coefficient named {both[0]!r}, but another value is "
            f"logged as train/{both[0]}: give it another name"
        )


def checked_env(
    policy: str | type[BasePolicy],
    policy_kwargs: Mapping[str, object] | None,
    env: GymEnv | VectorEnv | str | None,
    verbose: int,
    use_sde: bool,
    needed: bool,
) -> VecEnv | None:
    """Wrap an environment as SB3 does, and check that its spaces fit the policy.

    :param needed: whether ``env=None`` is an error
    :return: the wrapped environment; ``None`` if none was given
    :raises ArgumentError: if an environment is needed and there is none, or its spaces do not fit
    """
    if env is None:
        if needed:
            raise ArgumentError("env=None: pass an environment or the id of a registered one")
        return None
    made = env if isinstance(env, VectorEnv) else maybe_make_env(env, verbose)
    wrapped = SavedAlgorithm._wrap_env(made, verbose)
    check_action_space(wrapped.action_space, use_sde)
    check_observation_space(policy, wrapped.observation_space, policy_kwargs)
    return wrapped


def check_normalization(model: Any, env: VecEnv | None) -> None:
    """Warn once if an environment normalises observations twice, or lacks the statistics that a policy needs."""
    wrappers = [wrapper for wrapper in find_normalizations(env) if wrapper.norm_obs]
    keys = [key for wrapper in wrappers for key in wrapper.norm_obs_keys or [""]]
    each: list[Any] = [wrapper.obs_rms for wrapper in wrappers]
    is_filled = any(
        moments.count >= 1 for one in each for moments in (one.values() if isinstance(one, dict) else [one])
    )
    message = None
    if len({*keys}) < len(keys):
        message = "env normalizes observations twice, by a VecNormalize inside another one: leave out one of them"
    elif model.normalized and env is not None and not is_filled:
        message = (
            "the policy was trained on observations that VecNormalize normalized, but env has no VecNormalize with its "
            "statistics, which files of models do not contain: save them with model.get_vec_normalize_env().save(path) "
            "too, and pass VecNormalize.load(path, env)"
        )
    if message is not None and not model.run.warned:
        model.run.warned = True
        warnings.warn(message)


def check_learn(env: VecEnv | None, **arguments: object) -> None:
    """Check the arguments of ``learn``, and that there is an environment to learn in.

    It warns if the rollout buffer cannot hold the observations of the environment.

    :raises ArgumentError: if an argument is not allowed, or there is no environment
    """
    check_arguments(arguments, LEARN_RULES)
    if env is None:
        raise ArgumentError("the model has no environment to learn in: pass env to load(), or call set_env()")
    _warn_of_lost_fractions(env)


def _warn_of_lost_fractions(env: VecEnv) -> None:
    """Warn if ``VecNormalize`` returns fractions for observations that the rollout buffer stores as integers."""
    normalize = unwrap_vec_normalize(env)
    if normalize is None or not normalize.norm_obs:
        return
    space = env.observation_space
    keys = normalize.norm_obs_keys or []
    parts = [part for key, part in space.items() if key in keys] if isinstance(space, spaces.Dict) else [space]
    for part in parts:
        if np.issubdtype(part.dtype, np.integer):
            warnings.warn(
                f"VecNormalize turns observations in {part} into fractions, which the rollout buffer, like SB3's, "
                "stores as integers: the model learns from other observations than it acts on. Wrap each environment "
                "in gymnasium.wrappers.DtypeObservation(env, np.float32), or do not normalize these observations"
            )


def warn_of_untrained(plan: UpdatePlan, known: Sequence[str]) -> Sequence[str]:
    """Warn if no optimizer has parameters of the policy that require gradients.

    :param known: those that there was a warning of
    :return: the names of all of them
    """
    trained = {id(each) for optimizer in plan.optimizers for each in parameters_in(optimizer)}
    names = [name for name, each in plan.parameters.items() if each.requires_grad and id(each) not in trained]
    if names and names != known:
        warnings.warn(
            f"no optimizer has the policy's parameters {', '.join(names)}, so they are not trained. If they were "
            "replaced, make the optimizer anew, as in model.policy.optimizer = torch.optim.Adam(model.policy.parameters"
            "(), eps=1e-5), or else set their requires_grad to False"
        )
    return names


@contextmanager
def settings_kept() -> Iterator[None]:
    """Enable gradients while the context is active, let interrupts be held, and restore all settings afterwards.

    Gradients may be disabled when the context begins, if an interrupt has hit the exit of a ``no_grad``. The settings
    are PyTorch's gradient mode, NumPy's error handling and the handler of Ctrl-C.
    """
    gradients, errors = th.is_grad_enabled(), np.geterr()
    try:
        th.set_grad_enabled(True)
        with interrupts_can_be_held():
            yield
    finally:
        th.set_grad_enabled(gradients)
        np.seterr(**errors)


@contextmanager
def checked(model: OnPolicyAlgorithm) -> Iterator[None]:
    """Check what the environments return while the context is active, and name the cause and the step of errors.

    After another ``ValueError`` or ``RuntimeError``, the parameters and the observations are checked. If one of them
    is not finite, that is reported instead of the original error.
    """
    assert model.env is not None
    model.run.learner = get_ident()  # type: ignore[attr-defined]
    try:
        try:
            with checked_outputs(model.env):
                yield
        except EnvOutputError:
            raise
        except (ValueError, RuntimeError) as error:
            if "allow_early_resets" in str(error):
                raise RuntimeError(
                    "learn() begins new episodes, as it does after an interrupt, and Monitor(allow_early_resets=False) "
                    "refuses that in the middle of one: make the environments without this argument"
                ) from error
            check_finite_parameters(model.policy)
            if model._last_obs is not None:
                OutputCheck(model.observation_space, model.n_envs).numbers(model._last_obs)
            each = (rows for _, rows in parts_of(model.rollout_buffer.observations))
            wide = [np.abs(rows).max(initial=0) for rows in each if getattr(rows, "dtype", None) == np.float64]
            if wide and max(wide) > LARGEST:
                problem = f"too large for single precision, in which policies compute: {max(wide)}"
                raise NonFiniteError("observation", problem) from error
            raise
    except GuardError as error:
        if error.step is None and (error.env_index is not None or isinstance(error, EnvOutputError)):
            error.step = model.num_timesteps
        raise
    finally:
        model.run.learner = None  # type: ignore[attr-defined]


def check_prediction(
    model: OnPolicyAlgorithm,
    observation: np.ndarray | dict[str, np.ndarray],
    state: Sequence[np.ndarray] | None,
    episode_start: np.ndarray | None,
    action_masks: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Check the arguments of ``predict``.

    :return: the masks, as an argument of the policy's ``predict``, if it takes any
    :raises ArgumentError: if masks or the memory are missing, or are not those of the environments observed
    """
    policy, kind = model.policy, kind_of(model.policy)
    given = masks.check_given(action_masks, kind.takes_masks, type(policy).__name__, model.action_space)
    counts = {name: len(array) for name, array in given.items()}
    if kind.has_memory and state is not None:
        counts["state"] = np.shape(state[0])[1]
    if kind.has_memory and episode_start is not None:
        counts["episode_start"] = len(episode_start)
        if kind.takes_masks and state is None and not np.all(episode_start):
            raise ArgumentError(
                "state=None: episodes go on where episode_start is False, so pass the state that predict() returned. "
                "evaluate_policy of sb3-contrib drops it when it passes masks: use SB3's with "
                "sb3_ppo_variants.evaluation.WithMasks(model, env)"
            )
    if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
        raise ArgumentError("observation is (observation, info), by mixing Gym API with SB3's: pass the first alone")
    if counts:
        tensors = policy.obs_to_tensor(observation)[0]
        n_observations = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        for name, count in counts.items():
            if count != n_observations:
                raise ArgumentError(
                    f"{name} is for {count} environments, but there are {n_observations} observations: pass the "
                    f"{name} of these environments"
                )
    return given


def warn_of_prediction(model: Any, state: Sequence[np.ndarray] | None, episode_start: np.ndarray | None) -> None:
    """Warn if ``predict`` is used without the statistics of ``VecNormalize`` or the memory that the policy needs.

    The policy sees only observations, so the frame of ``evaluate_policy`` tells where they come from.
    """
    caller = sys._getframe(2)
    if caller.f_code is evaluate_policy.__code__:
        check_normalization(model, caller.f_locals["env"])
    forgets = state is None and not (episode_start is not None and np.all(episode_start))
    model.run.forgotten = model.run.forgotten + 1 if forgets and kind_of(model.policy).has_memory else 0
    if model.run.forgotten == FORGOTTEN:
        warnings.warn(
            f"predict() was called {FORGOTTEN} times in a row without a state, so that the policy remembers nothing: "
            "pass the state that the last call returned, and episode_start"
        )


def check_action_space(space: AnySpace, use_sde: bool) -> None:
    """Check that policies can act in an action space.

    :raises ArgumentError: if they cannot
    """
    parts = {"env.action_space" + "".join(f"[{key!r}]" for key in path): part for path, part in parts_of(space)}
    for name, part in parts.items():
        if not isinstance(part, ACTION_SPACES):
            names = ", ".join(space.__name__ for space in ACTION_SPACES)
            raise ArgumentError(f"{name}={part} is not supported; supported are {names}")
        if isinstance(part, spaces.Box) and not part.is_bounded():
            which = ", ".join(map(str, np.flatnonzero(~(part.bounded_below & part.bounded_above))))
            raise ArgumentError(
                f"{name}={part} has infinite bounds; PPO needs a Box with finite bounds, which the dimensions {which} "
                "lack"
            )
    if use_sde and not isinstance(space, spaces.Box):
        raise ArgumentError(f"use_sde=True needs a Box action space, but the environment has {space}")
    for name, part in (parts or {"env.action_space": space}).items():
        if not parts or 0 in (part.shape or ()):
            raise ArgumentError(f"{name}={part} has no actions: a policy needs at least one dimension")
    if is_hybrid(space):
        return  # The layout of hybrid actions flattens their parts, and adds their starts.
    shape = space.shape or ()
    if len(shape) > 1 and isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        flat = f"MultiBinary({math.prod(shape)})"
        if isinstance(space, spaces.MultiDiscrete):
            flat = f"MultiDiscrete({space.nvec.flatten().tolist()})"
        raise ArgumentError(
            f"env.action_space={space} is not flat, as SB3's policies expect: wrap the environment in "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action.reshape({shape}), {flat})"
        )
    _check_start("action", "env.action_space", space)


def _check_start(kind: str, name: str, space: AnySpace, nested: bool = False) -> None:
    """Check that a discrete space starts at 0, because SB3's policies neither add nor subtract a start."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or not np.any(space.start):
        return
    if isinstance(space, spaces.Discrete):
        start, from_zero = f"{space.start}", f"Discrete({space.n})"
    else:
        start, from_zero = f"np.array({space.start.tolist()})", f"MultiDiscrete({space.nvec.tolist()})"
    shifted = f"lambda {kind}: {kind} {'+' if kind == 'action' else '-'} {start}, {from_zero}"
    advice = f"wrap the environment in gymnasium.wrappers.Transform{kind.capitalize()}(env, {shifted})"
    if nested:
        advice = "subtract it in a gymnasium.ObservationWrapper"
    raise ArgumentError(f"{name}={space} does not start at 0, as SB3's policies expect: {advice}")


def check_observation_space(
    policy: str | type[BasePolicy], space: AnySpace, policy_kwargs: Mapping[str, object] | None
) -> None:
    """Check that a policy supports the observations of an environment. SB3 makes the remaining checks.

    :raises ArgumentError: if it does not
    """
    if isinstance(space, spaces.Tuple):
        raise ArgumentError(
            f"the environment has observations in {space}, which no policy supports: make them a Dict, as with "
            "gymnasium.wrappers.TransformObservation, and use 'MultiInputPolicy'"
        )
    nested, parts = isinstance(space, spaces.Dict), {"env.observation_space": space}
    if isinstance(space, spaces.Dict):
        parts = {f"env.observation_space[{key!r}]": part for key, part in space.items()}
    for name, part in parts.items():
        _check_start("observation", name, part, nested)
    if not isinstance(policy, str) or (alias := ALIAS.fullmatch(policy)) is None:
        return
    if (alias[2] == "MultiInput") != nested:
        suitable = "MultiInput" if nested else "Cnn" if is_image_space(space) else "Mlp"
        raise ArgumentError(
            f"policy={policy!r} needs other observations than the environment has, {space}: use "
            f"{policy.replace(alias[2], suitable)!r}"
        )
    if "features_extractor_class" in (policy_kwargs or {}):
        return
    if not parts:
        raise ArgumentError(f"env.observation_space={space} has no observations: add one, such as a constant")
    for name, part in parts.items():
        _check_shape(name, part, nested, with_lstm=alias[3] is not None)


def _check_shape(name: str, space: AnySpace, nested: bool, with_lstm: bool) -> None:
    """Check that SB3's features extractors can flatten observations, and that there are any."""
    shape = space.shape or ()
    if 0 in shape:
        raise ArgumentError(f"{name}={space} has no elements that a policy could observe: leave it out")
    if isinstance(space, spaces.Box) and shape == ():
        problem, advice = "has no dimensions, but SB3's policies need one", "ReshapeObservation(env, (1,))"
    # SB3 counts the features of MultiDiscrete observations in a type that PyTorch's LSTM rejects.
    elif isinstance(space, spaces.MultiDiscrete) and (len(shape) > 1 or with_lstm):
        whose = "SB3's policies" if len(shape) > 1 else "sb3-contrib's policies with LSTMs"
        problem, advice = f"is not supported by {whose}", "FlattenObservation(env)"
    else:
        return
    advice = "a gymnasium.ObservationWrapper" if nested else f"gymnasium.wrappers.{advice}"
    raise ArgumentError(f"{name}={space} {problem}: wrap the environment in {advice}")
