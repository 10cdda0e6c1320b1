"""Policy kinds, which evaluate the steps of a rollout and minibatches, and set up the policy and buffer of a model.

:class:`PolicyKind` evaluates policies that act on observations alone. Kinds of policies that need more, such as action
masks or memory, derive from it, and are registered with :func:`register_kind`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import cache, partial
from threading import get_ident, main_thread
from traceback import walk_tb
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppo_variants.arguments import (
    COUNT,
    FINITE,
    FLAG,
    Rule,
    Values,
    as_schedule,
    check_names,
    instance,
    is_schedule,
    list_arguments,
)
from sb3_ppo_variants.distributions import Beta
from sb3_ppo_variants.envs.masks import MaskCheck
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.kl import Divergences, MissingKLError, Parameters, divergences_of, known_parameters
from sb3_ppo_variants.layout import is_hybrid, space_of_rows
from sb3_ppo_variants.policies.head import (
    KEYS,
    LOG_STD_INIT,
    OF_DISTRIBUTION,
    OF_PARTS,
    ActionHead,
    AsymmetricPolicy,
    BoxPolicy,
    HybridPolicy,
)
from sb3_ppo_variants.rollout import ROWS_AT_ONCE, Read, Samples, inputs_at

# Arguments that these dicts must not contain, because SB3 or this module passes them itself.
GIVEN_TO_POLICY = ("observation_space", "action_space", "lr_schedule", "use_sde")
GIVEN_TO_OPTIMIZER = ("params", "lr")
GIVEN_TO_BUFFER = (
    "buffer_size", "observation_space", "action_space", "device", "gamma", "gae_lambda", "n_envs", "hidden_state_shape",
)  # fmt: skip
# What a policy needs besides observations: nothing, action masks, or the sequences of a memory.
More: TypeAlias = Any
Kind = TypeVar("Kind", bound="PolicyKind")


def _is_sizes(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(map(COUNT.accepts, value))


def _is_net_arch(value: object) -> bool:
    if isinstance(value, Mapping):
        return set(value) <= {"pi", "vf"} and all(map(_is_sizes, value.values()))
    # SB3 still accepts the dict in a list.
    return _is_sizes(value) or (isinstance(value, list) and len(value) == 1 and _is_net_arch(value[0]))


def _is_keys(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(key, str) for key in value)


CLASS = Rule("a class, or a function that makes an instance", lambda v: callable(v) and not isinstance(v, nn.Module))
# Later versions of SB3 may have further arguments.
POLICY_RULES: Mapping[str, Rule] = {
    "net_arch": Rule("sizes >= 1 of hidden layers, or a dict of them by 'pi' and 'vf'", _is_net_arch).or_none(),
    "log_std_init": FINITE,
    **dict.fromkeys(("activation_fn", "features_extractor_class", "optimizer_class"), CLASS),
    **dict.fromkeys(("features_extractor_kwargs", "optimizer_kwargs"), instance("a dict", dict).or_none()),
    **dict.fromkeys(("ortho_init", "full_std", "use_expln", "squash_output"), FLAG),
    **dict.fromkeys(("share_features_extractor", "normalize_images"), FLAG),
    **dict.fromkeys(KEYS, Rule("a list of at least one key of the observations", _is_keys).or_none()),
    **dict.fromkeys(OF_PARTS, instance("a dict by the names of parts of the actions", Mapping).or_none()),
}


class Acted(NamedTuple):
    """What the policy computes for one step in every environment."""

    actions: th.Tensor
    """Shape ``(n_envs, ...)``."""
    values: th.Tensor
    """Shape ``(n_envs, 1)``."""
    log_probs: th.Tensor
    """Shape ``(n_envs,)``."""
    parameters: Parameters | None
    """Parameters of the distributions that the actions were drawn from; ``None`` if they have no known KL."""
    columns: Values
    """Arguments of the buffer's ``add`` in addition to SB3's, by name."""
    seen: Values
    """Entries of the callbacks' ``locals`` in addition to SB3's, by name."""


class Evaluated(NamedTuple):
    """A minibatch evaluated by the current policy, with one row per sample."""

    values: th.Tensor
    """Shape ``(batch,)``."""
    log_prob: th.Tensor
    """log pi(a|s), shape ``(batch,)``."""
    entropy: th.Tensor | None
    """Shape ``(batch,)``; ``None`` where it has no closed form."""


class PolicyKind:
    """Evaluates a policy as SB3's PPO does, or with masks, as sb3-contrib's MaskablePPO does.

    All samples of a minibatch count equally: a kind that pads them leaves out the padding. What the methods call
    ``more`` is what the policy needs besides observations: ``None``, action masks or sequences.

    :param policy: the policy
    """

    policies: ClassVar[Sequence[type[BasePolicy]]] = (
        ActorCriticPolicy,
        ActorCriticCnnPolicy,
        MultiInputActorCriticPolicy,
    )
    """The policy classes for vectors, images and dictionaries."""
    aliases: ClassVar[Sequence[str]] = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
    """Their aliases."""
    asymmetric: ClassVar[type[BasePolicy]] = AsymmetricPolicy
    """The policy class for dictionaries of which actor and critic see different parts."""
    box_head: ClassVar[type[BasePolicy]] = BoxPolicy
    """That which draws continuous actions from a named distribution, with any observations."""
    hybrid_head: ClassVar[type[BasePolicy]] = HybridPolicy
    """That for actions that have several parts, with any observations."""
    buffers: ClassVar[Sequence[type[RolloutBuffer]]] = (RolloutBuffer, DictRolloutBuffer)
    """The rollout buffer classes for arrays and for dictionaries."""
    rules: ClassVar[Mapping[str, Rule]] = POLICY_RULES
    """The allowed values of entries of ``policy_kwargs``."""
    takes_masks: ClassVar[bool] = False
    """Whether the policy takes action masks."""
    has_memory: ClassVar[bool] = False
    """Whether actions depend on earlier steps of the episode."""

    def __init__(self, policy: Any):
        # sb3-contrib's policies are subclasses of ActorCriticPolicy whose methods take more arguments.
        self.policy = policy
        self._own = _overridden(policy.__class__, (self.policies[0], self.hybrid_head))
        # A policy that overrides both methods of training may have networks of its own, about which an inherited
        # get_distribution knows nothing.
        is_own = "get_distribution" in self._own or not {"forward", "evaluate_actions"} <= self._own
        self._has_distribution = is_own and hasattr(policy, "get_distribution")

    # Models

    @classmethod
    def has_sb3s_constructor(cls, policy_class: type[BasePolicy]) -> bool:
        """Whether a class has the constructor of SB3's or sb3-contrib's, so that its arguments mean the same."""
        return policy_class.__init__ in [policy.__init__ for policy in cls.policies]

    @classmethod
    def make_policy(
        cls, make: Callable[..., ActorCriticPolicy], model: OnPolicyAlgorithm, arguments: Values
    ) -> ActorCriticPolicy:
        """Create the policy of a model, and the state that the model keeps for it between rollouts, if any.

        :param make: the class of the policy
        :param arguments: the entries of ``policy_kwargs``
        :raises ArgumentError: if entries of ``policy_kwargs`` do not fit each other or the model
        """
        return make(model.observation_space, model.action_space, model.lr_schedule, use_sde=model.use_sde, **arguments)

    def buffer_arguments(self, model: OnPolicyAlgorithm) -> Values:
        """Return the arguments of the buffer's constructor that depend on the policy: the space of actions in it."""
        return {"action_space": space_of_rows(model.action_space)}

    def acting(self, model: OnPolicyAlgorithm) -> "ActingPolicy":
        """Begin a rollout of a model in its environments."""
        return ActingPolicy(self, model)

    # Minibatches

    def samples(self, read: Read, rows: np.ndarray | None) -> Samples:
        """Convert a minibatch that the rollout buffer yields. Only observations, actions and ``more`` may be padded.

        :param rows: the rows of the rollout that it consists of, if they are known
        """
        masks = read.action_masks if self.takes_masks else None
        terms = read.old_values, read.old_log_prob, read.advantages, read.returns
        return Samples(read.observations, read.actions, *terms, masks, rows)

    def evaluate(self, samples: Samples) -> Evaluated:
        """Evaluate a minibatch."""
        actions = samples.actions
        if isinstance(self.policy.action_space, spaces.Discrete):
            actions = actions.long().flatten()
        elif isinstance(self.policy.action_space, spaces.MultiBinary):
            # sb3-contrib's recurrent buffers return integers, for which there is no log-probability.
            actions = actions.float()
        given = self.arguments(samples.more)
        values, log_prob, entropy = self.policy.evaluate_actions(samples.observations, actions, **given)
        return Evaluated(values.flatten(), log_prob, entropy)

    def evaluate_values(self, samples: Samples) -> th.Tensor:
        """Evaluate only the values of a minibatch, shape ``(batch,)``."""
        return self.values(samples.observations, samples.more).flatten()

    def evaluated_parameters(self, samples: Samples) -> tuple[Divergences, Parameters]:
        """Read the divergences and the distributions' parameters of these samples, right after :meth:`evaluate`."""
        is_left = self._leaves_distribution("evaluate_actions")
        distribution = self.policy.action_dist if is_left else self.distribution(samples.observations, samples.more)
        divergences = divergences_of(distribution)
        return divergences, divergences.parameters(distribution)

    # Rollouts

    def distributions(self, buffer: RolloutBuffer) -> Iterator[Distribution]:
        """Compute the distributions in all states of a rollout in the order of its rows, in chunks.

        :param buffer: a full buffer, whether or not it has been read before
        :return: an iterator, which may yield the same object each time with different parameters
        """
        self.check_kl()
        n_rows = buffer.buffer_size * buffer.n_envs
        for start in range(0, n_rows, ROWS_AT_ONCE):
            yield self.distribution(*inputs_at(buffer, np.arange(start, min(start + ROWS_AT_ONCE, n_rows))))

    def of_first_state(self, observations: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        """Compute the distributions and the values, shape ``(n, 1)``, in initial states of episodes."""
        return self.distribution(observations), self.values(observations)

    def acted_parameters(self) -> Parameters | None:
        """Read the parameters of the distributions of a step, right after ``forward``, or ``None`` if it left none."""
        is_left = self._has_distribution and self._leaves_distribution("forward")
        return known_parameters(self.policy.action_dist) if is_left else None

    def apart(self: Kind) -> Kind:
        """Return the kind of a copy of the policy, which leaves no trace in the policy."""
        return type(self)(copy_of_policy(self.policy))

    # The methods of the policy, which other kinds call with more arguments

    def distribution(self, observations: PyTorchObs, more: More = None) -> Distribution:
        """Compute the distributions of actions."""
        distribution: Distribution = self.policy.get_distribution(observations, **self.arguments(more))
        return distribution

    def values(self, observations: PyTorchObs, more: More = None) -> th.Tensor:
        """Compute the values, shape ``(n, 1)``."""
        values: th.Tensor = self.policy.predict_values(observations)
        return values

    def arguments(self, more: More) -> Values:
        """Return the arguments of the policy's methods in addition to observations and actions, by name."""
        return {"action_masks": more} if self.takes_masks else {}

    # Policies that override methods

    def check_kl(self) -> None:
        """Check that the KL of the policy's distributions is known.

        :raises MissingKLError: if it is not, or if ``get_distribution`` does not belong to the policy
        """
        if not self._has_distribution:
            raise MissingKLError(
                f"{type(self.policy).__name__} has a forward and an evaluate_actions of its own, but no "
                "get_distribution, so its KL is not known: write get_distribution too"
            )
        divergences_of(self.policy.action_dist)

    def _leaves_distribution(self, method: str) -> bool:
        """Whether a call of this method of the policy leaves its distributions in ``action_dist``.

        SB3's and sb3-contrib's methods do, which saves a second forward pass. A policy that overrides one may not.
        """
        return self._own.isdisjoint((method, "get_distribution", "_get_action_dist_from_latent"))


@cache
def _overridden(policy_class: type[BasePolicy], known: tuple[type[BasePolicy], ...]) -> set[str]:
    """Find the methods of a class that are neither SB3's nor those of the classes that its kind is for."""
    methods = ("forward", "evaluate_actions", "get_distribution", "_get_action_dist_from_latent")
    known_methods = {name: [getattr(cls, name) for cls in (ActorCriticPolicy, *known)] for name in methods}
    return {name for name in methods if getattr(policy_class, name, None) not in known_methods[name]}


class ActingPolicy:
    """A policy during one rollout, with the state that it needs in addition to observations. It needs no gradients.

    :param kind: evaluates the policy
    :param model: the policy's model
    """

    def __init__(self, kind: PolicyKind, model: OnPolicyAlgorithm):
        self._kind, self._model = kind, model
        self._masks = MaskCheck(model.action_space) if kind.takes_masks else None

    def act(self, observations: PyTorchObs, episode_starts: np.ndarray) -> Acted:
        """Draw an action for each environment.

        :param episode_starts: whether an episode begins with these observations, shape ``(n_envs,)``
        """
        masks = None if self._masks is None else self._masks.now(self._model.env)
        given = self._kind.arguments(masks)
        actions, values, log_probs = self._kind.policy(observations, **given)
        parameters = self._kind.acted_parameters()
        return Acted(actions, values, log_probs, parameters, columns=given, seen=given)

    def terminal_value(self, observation: PyTorchObs, env_index: int) -> th.Tensor:
        """Estimate the value of the state in which the last step of :meth:`act` ended an episode, shape ``(1, 1)``."""
        return self._kind.values(observation)

    def last_values(self, observations: PyTorchObs, dones: np.ndarray) -> th.Tensor:
        """Estimate the values of the states after the last step, shape ``(n_envs, 1)``.

        :param dones: whether the last step ended an episode, shape ``(n_envs,)``
        """
        return self._kind.values(observations)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Copy a value if that is possible. Tensors that were computed with gradients, also in lists, lose their graphs."""
    if isinstance(value, list):
        return [_copied(each, memo) for each in value]
    try:
        return value.detach().clone() if getattr(value, "grad_fn", None) is not None else deepcopy(value, memo)
    except Exception:  # Classes choose what they raise.
        return value


def _shallow(module: Any) -> Any:
    """Copy a module and share its attributes. Modules of PyTorch's parametrizations refuse ``copy``."""
    made = object.__new__(type(module))
    vars(made).update(vars(module))
    return made


def copy_of_policy(policy: ActorCriticPolicy) -> Any:
    """Copy a policy with all that it remembers, so that what the copy computes leaves no trace in the policy.

    The two share their parameters, and what cannot be copied, such as a lock. ``torch.compile`` may have wrapped the
    policy, but not the copy.
    """
    own: Any = getattr(policy, "_orig_mod", policy)
    distribution = getattr(own, "action_dist", None)
    memo = {id(each): each for each in (*own.parameters(), own.optimizer)}
    memo |= {id(each): _shallow(each) for each in own.modules()} | {id(distribution): copy(distribution)}
    for module in own.modules():
        vars(memo[id(module)]).update({name: _copied(value, memo) for name, value in [*vars(module).items()]})
    return memo[id(own)]


def policy_of_thread(policy: ActorCriticPolicy, learner: int | None) -> ActorCriticPolicy:
    """Return the policy, or a copy that shares no distribution, and no mode while the model learns in another thread.

    :param learner: the thread that learns, if one does
    """
    if get_ident() == (learner or main_thread().ident):
        return policy
    own: ActorCriticPolicy = copy_of_policy(policy) if learner else _shallow(getattr(policy, "_orig_mod", policy))
    own.action_dist = copy(own.action_dist)
    return own


_KINDS: dict[type, type[PolicyKind]] = {}
ALIASES: dict[str, type[BasePolicy]] = {}
"""The aliases of policies."""


def register_kind(kind: type[Kind]) -> type[Kind]:
    """Register the kind of its policies and buffers, and of their subclasses. A class keeps its first kind."""
    for cls in (*kind.policies, kind.asymmetric, kind.box_head, kind.hybrid_head, *kind.buffers):
        _KINDS.setdefault(cls, kind)
    for alias, policy in zip(kind.aliases, kind.policies, strict=False):
        ALIASES.setdefault(alias, policy)
    return kind


register_kind(PolicyKind)


def kind_of_class(cls: type[BasePolicy] | type[RolloutBuffer]) -> type[PolicyKind]:
    """Find the kind of a class of policies or of rollout buffers."""
    return next((_KINDS[base] for base in cls.__mro__ if base in _KINDS), PolicyKind)


def kind_of(policy: ActorCriticPolicy) -> PolicyKind:
    """Find the kind of a policy, which evaluates it. ``torch.compile`` may have wrapped it."""
    own: ActorCriticPolicy = getattr(policy, "_orig_mod", policy)
    return kind_of_class(type(own))(policy)


def of_first_state(policy: ActorCriticPolicy) -> tuple[Distribution, th.Tensor]:
    """Compute the distribution and the value, shape ``(1, 1)``, in a random first state of an episode.

    A copy of the policy does, in evaluation mode.
    """
    space = deepcopy(policy.observation_space)  # Sampling advances the random generator of a space.
    apart = kind_of(copy_of_policy(policy))
    apart.policy.set_training_mode(False)
    return apart.of_first_state(policy.obs_to_tensor(space.sample())[0])


def make_policy_and_buffer(model: OnPolicyAlgorithm) -> None:
    """Set up a model as SB3 does, with the policy and the rollout buffer of its kind.

    :raises ArgumentError: if the model cannot train the policy, an entry of ``policy_kwargs`` or
        ``rollout_buffer_kwargs`` is not allowed, or the buffer cannot hold the policy's rollouts
    """
    model._setup_lr_schedule()
    model.set_random_seed(model.seed)
    of_policy = kind_of_class(model.policy_class)
    buffer_class = _choose_buffer(model, of_policy)
    check_names("rollout_buffer_kwargs", model.rollout_buffer_kwargs, buffer_class, GIVEN_TO_BUFFER)
    _check_kwargs(model, of_policy)
    try:
        model.policy = of_policy.make_policy(_choose_policy(model, of_policy), model, dict(model.policy_kwargs))
    except RuntimeError as error:
        _check_images(error)
        raise
    model.policy, kind = model.policy.to(model.device), kind_of(model.policy)
    model.rollout_buffer = buffer_class(
        model.n_steps, model.observation_space, device=model.device, gamma=model.gamma, n_envs=model.n_envs,
        gae_lambda=1.0 if is_schedule(model.gae_lambda) else float(as_schedule(model.gae_lambda)(1.0)),
        **kind.buffer_arguments(model), **model.rollout_buffer_kwargs,
    )  # fmt: skip
    model.rollout_buffer_class = buffer_class
    model._maybe_recommend_cpu()


def _check_images(error: RuntimeError) -> None:
    """:raises ArgumentError: if an error was raised because images are too small for SB3's convolutions"""
    for frame, _ in walk_tb(error.__traceback__):
        space = frame.f_locals["observation_space"] if frame.f_code is NatureCNN.__init__.__code__ else None
        if space is not None and min(space.shape[1:]) < 36:
            raise ArgumentError(
                f"env.observation_space has images of {space.shape[1:]} pixels, and SB3's NatureCNN needs 36 x 36 or "
                "more: enlarge them with gymnasium.wrappers.ResizeObservation, or pass layers for small images as "
                "policy_kwargs['features_extractor_class']"
            ) from error


def _check_kwargs(model: OnPolicyAlgorithm, kind: type[PolicyKind]) -> None:
    """Check ``policy_kwargs``. A policy with a constructor of its own may give the arguments other meanings."""
    given, policy_class = model.policy_kwargs, model.policy_class
    own, has_sb3s = list_arguments(policy_class), kind.has_sb3s_constructor(policy_class)
    of_kind = kind.rules if has_sb3s else {}
    also = (*KEYS, *OF_PARTS, *OF_DISTRIBUTION, LOG_STD_INIT, *of_kind)
    check_names("policy_kwargs", given, policy_class, GIVEN_TO_POLICY, also)
    for name, value in given.items():
        if name in KEYS and name not in own and policy_class is not kind.policies[2]:
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs Dict observations and one of the policies MultiInputPolicy, "
                "MaskableMultiInputPolicy, MultiInputLstmPolicy and MaskableMultiInputLstmPolicy"
            )
        if name in (*OF_PARTS, LOG_STD_INIT) and name not in own and not is_hybrid(model.action_space):
            of_policy = "" if name in OF_PARTS else f" for a {policy_class.__name__}"
            raise ArgumentError(
                f"policy_kwargs[{name!r}] needs a Dict or Tuple action space{of_policy}, but the environment has "
                f"{model.action_space}: leave it out"
            )
        if name in of_kind:
            of_kind[name].check(f"policy_kwargs[{name!r}]", value)
    if has_sb3s:
        if LOG_STD_INIT in given and given.get("distribution") in ("beta", Beta()):
            raise ArgumentError(
                f"policy_kwargs[{LOG_STD_INIT!r}] has no effect beside a Beta distribution, which has no standard "
                "deviation of its own: leave it out"
            )
        optimizer_class = given.get("optimizer_class", th.optim.Adam)
        of_optimizer = given.get("optimizer_kwargs") or {}
        check_names("policy_kwargs['optimizer_kwargs']", of_optimizer, optimizer_class, GIVEN_TO_OPTIMIZER)


def _choose_policy(model: OnPolicyAlgorithm, kind: type[PolicyKind]) -> Callable[..., Any]:
    """Choose the class of the policy to make. A model and its files name SB3's or sb3-contrib's class."""
    given, made, space = model.policy_kwargs, model.policy_class, model.action_space
    if made in kind.policies[2:] and any(name in given for name in KEYS):
        made = kind.asymmetric
    arguments = list_arguments(made)
    named = [name for name in OF_DISTRIBUTION if name in given and name not in arguments]
    if issubclass(made, ActionHead) or not (named or is_hybrid(space)):
        return made
    if made not in (*kind.policies, kind.asymmetric):
        head = "HybridActions" if is_hybrid(space) else "BoxActions"
        what = f"policy_kwargs[{named[0]!r}]" if named else f"env.action_space={space}"
        raise ArgumentError(
            f"{what} needs a policy that draws such actions: write class Mine({head}, {made.__name__}) with "
            f"{head} from sb3_ppo_variants.policies.head, and pass it"
        )
    # Policies for images and for dictionaries differ from others only in what extracts the features.
    with_head: Callable[..., Any] = kind.hybrid_head if is_hybrid(space) else kind.box_head
    return partial(with_head, features_extractor_class=arguments["features_extractor_class"])


def _choose_buffer(model: OnPolicyAlgorithm, kind: type[PolicyKind]) -> type[RolloutBuffer]:
    holds_dicts = isinstance(model.observation_space, spaces.Dict)
    suitable = kind.buffers[holds_dicts]
    given = model.rollout_buffer_class or suitable
    fits = issubclass(given, suitable) and issubclass(given, DictRolloutBuffer) == holds_dicts
    if not fits or kind_of_class(given).buffers != kind.buffers:
        raise ArgumentError(
            f"rollout_buffer_class={given} cannot hold rollouts of {model.policy_class.__name__}; "
            f"use {suitable.__name__} or a subclass of it"
        )
    return given
