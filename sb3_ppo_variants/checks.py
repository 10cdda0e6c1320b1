"""Checks of what a model is given: its class, its arguments and its environment, also while it learns."""

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from sb3_ppo_variants.arguments.checks import check_observations, check_start
from sb3_ppo_variants.arguments.rules import LEARN_RULES, check_arguments, check_spaces
from sb3_ppo_variants.collector import Steps
from sb3_ppo_variants.engines.native.library import native_test
from sb3_ppo_variants.errors import ArgumentError, EnvOutputError, NonFiniteError
from sb3_ppo_variants.guards import masks
from sb3_ppo_variants.guards.capabilities import inner
from sb3_ppo_variants.guards.interrupts import interrupts_can_be_held
from sb3_ppo_variants.guards.outputs import Watch, show
from sb3_ppo_variants.guards.stepping import check_seen, guard_envs
from sb3_ppo_variants.layout import Actions, parts_of
from sb3_ppo_variants.losses import ValueLoss
from sb3_ppo_variants.objectives import Objective
from sb3_ppo_variants.policies.families import first_state, kind_of
from sb3_ppo_variants.policies.kind import without_traces
from sb3_ppo_variants.saving import SavedAlgorithm

# Their wrappers return what they should.
KNOWN_PACKAGES = ("stable_baselines3", "sb3_ppo_variants")


def check_objective(objective: Objective, policy: ActorCriticPolicy) -> None:
    """Let an objective check the distribution of a policy's actions, if it has something to check.

    :raises ArgumentError: if it does not know the distribution; an objective of a user may raise something else
    """
    of_loss = objective.within
    if type(of_loss).check_distribution is Objective.check_distribution:
        return
    with th.no_grad(), without_traces(policy), first_state(policy) as (distribution, _):
        of_loss.check_distribution(distribution)


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
    check_spaces(wrapped.action_space, use_sde)
    check_start("action", wrapped.action_space)
    check_observations(policy, wrapped.observation_space, policy_kwargs)
    return wrapped


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


def check_finite_parameters(policy: ActorCriticPolicy) -> None:
    """Check that all parameters of the policy are finite.

    :raises NonFiniteError: if a parameter is not finite, naming it
    """
    for name, parameter in policy.named_parameters():
        if not parameter.isfinite().all():
            raise NonFiniteError(f"parameter {name}", "not finite")


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
    """Check the environments while the context is active, and name the cause of errors that follow from bad numbers.

    After another ``ValueError`` or ``RuntimeError``, the parameters and the last observations are checked. If one of
    them is not finite, that is reported instead of the original error.
    """
    try:
        with guard_envs(model, native_test):
            yield
    except EnvOutputError:
        raise
    except (ValueError, RuntimeError):
        check_finite_parameters(model.policy)
        check_seen(model)
        raise


class WrappedSteps:
    """Steps environments, and checks the types and shapes of what wrappers of a user make of their outputs.

    NumPy would broadcast others, such as one reward for all environments.

    :param steps: steps the environments
    :param model: the model, whose last observations are checked, too
    :raises EnvOutputError: if they have another type or shape
    """

    def __init__(self, steps: Steps, model: OnPolicyAlgorithm):
        self.num_envs, self._steps = steps.num_envs, steps
        self._watch = Watch(model)
        self._shapes = {path: (self.num_envs, *part.shape) for path, part in parts_of(model.observation_space)}
        self._check_observations(model._last_obs)

    def step(self, actions: Actions) -> VecEnvStepReturn:
        """Step the environments.

        :raises EnvOutputError: if an output has another type or shape
        """
        observations, rewards, dones, infos = self._steps.step(actions)
        self._check_observations(observations)
        for quantity, array, of in (("reward", rewards, "a number"), ("done", dones, "True or False")):
            if not isinstance(array, np.ndarray) or array.shape != (self.num_envs,):
                self._watch.refuse(quantity, show(array), f"an array with {of} for each environment", None)
        return observations, rewards, dones, infos

    def _check_observations(self, observations: object) -> None:
        shapes = {path: part.shape for path, part in parts_of(observations) if isinstance(part, np.ndarray)}
        if shapes != self._shapes:
            found = show(observations)
            if isinstance(observations, np.ndarray):
                found = f"an array of shape {observations.shape}"
            keys = {path: f" at {'.'.join(map(str, path))!r}" if path else "" for path in self._shapes}
            wanted = " and ".join(f"an array of shape {shape}{keys[path]}" for path, shape in self._shapes.items())
            self._watch.refuse("observation", found, wanted, None)


def checked_steps(steps: Steps, model: OnPolicyAlgorithm) -> Steps:
    """Return what steps the environments of a model, with checks if wrappers of a user take part."""
    env = model.env
    while env is not None and (below := inner(env)) is not None:
        if type(env).__module__.partition(".")[0] not in KNOWN_PACKAGES:
            return WrappedSteps(steps, model)
        env = below
    return steps


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
    if kind.takes_masks and kind.has_memory:
        _check_begins(state, episode_start)
    remembers = kind.has_memory and (state is not None or episode_start is not None)
    if (given or remembers) and not isinstance(observation, tuple):  # The policy itself refuses tuples.
        tensors = policy.obs_to_tensor(observation)[0]
        n_observations = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        if given:
            masks.check_number(len(given[masks.METHOD]), n_observations)
        if remembers:
            _check_memory(() if state is None else state, episode_start, n_observations)
    return given


def _check_begins(state: object, episode_start: np.ndarray | None) -> None:
    """Check that the memory of a policy with masks is not lost, as in sb3-contrib's evaluation with masks.

    :raises ArgumentError: if episodes go on, but their states are missing
    """
    if state is None and episode_start is not None and not np.all(episode_start):
        raise ArgumentError(
            "state=None: episodes go on where episode_start is False, so pass the state that predict() returned. "
            "evaluate_policy of sb3-contrib drops it when it passes masks: use SB3's with "
            "sb3_ppo_variants.evaluation.WithMasks(model, env)"
        )


def _check_memory(state: Sequence[np.ndarray], episode_start: np.ndarray | None, n_observations: int) -> None:
    """Check that the states of an LSTM, and the starts of episodes, are those of as many environments as observed.

    :raises ArgumentError: if they are not
    """
    counts = {"state": {np.shape(part)[1] for part in state if np.ndim(part) == 3}}
    if episode_start is not None and np.ndim(episode_start) == 1:
        counts["episode_start"] = {len(episode_start)}
    for name, found in counts.items():
        if found - {n_observations}:
            raise ArgumentError(
                f"{name} is for {max(found - {n_observations})} environments, but there are {n_observations} "
                f"observations: pass the {name} of these environments, or None to start anew"
            )
