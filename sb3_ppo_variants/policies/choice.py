"""Finds the kind of a policy. Kinds that need sb3-contrib are only imported, together with it, when they are used."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from sb3_ppo_variants.arguments.rules import FRACTION, current_value
from sb3_ppo_variants.errors import ArgumentError, installation
from sb3_ppo_variants.kl import divergences_of
from sb3_ppo_variants.layout import layout_of
from sb3_ppo_variants.policies.kind import PolicyKind


def _recurrent() -> type[PolicyKind]:
    from sb3_ppo_variants.policies.recurrent import Recurrent

    return Recurrent


def _masked() -> type[PolicyKind]:
    from sb3_ppo_variants.policies.masked import Masked

    return Masked


def _masked_recurrent() -> type[PolicyKind]:
    from sb3_ppo_variants.policies.masked_recurrent import MaskedRecurrent

    return MaskedRecurrent


@dataclass(frozen=True)
class Family:
    """The policies of one kind. They are identified by name, so that they can be recognised before they are imported.

    :param package: the package that defines the classes of the policies and of their buffers
    :param aliases: the aliases of the policies for vectors, images and dictionaries
    :param load: imports the kind
    """

    package: str
    aliases: tuple[str, ...]
    load: Callable[[], type[PolicyKind]]

    def kind(self) -> type[PolicyKind]:
        """Import and return the kind.

        :raises ArgumentError: if sb3-contrib is needed but not installed, naming the extra to install
        """
        try:
            return self.load()
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("sb3_contrib"):
                raise
            raise ArgumentError(
                f"policy={self.aliases[0]!r} and the like need sb3-contrib: {installation('contrib')}"
            ) from error


# A family comes before those from whose classes its own are derived.
FAMILIES = (
    Family(
        "sb3_ppo_variants.policies.masked_recurrent",
        ("MaskableMlpLstmPolicy", "MaskableCnnLstmPolicy", "MaskableMultiInputLstmPolicy"),
        _masked_recurrent,
    ),
    Family(
        "sb3_contrib.common.recurrent",
        ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"),
        _recurrent,
    ),
    Family(
        "sb3_contrib.common.maskable",
        ("MaskableMlpPolicy", "MaskableCnnPolicy", "MaskableMultiInputPolicy"),
        _masked,
    ),
    Family("stable_baselines3", ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), lambda: PolicyKind),
)


class Aliases(Mapping[str, type[BasePolicy]]):
    """Maps aliases to policy classes, which are imported when they are looked up."""

    def __getitem__(self, alias: str) -> type[BasePolicy]:
        for family in FAMILIES:
            if alias in family.aliases:
                return family.kind().policies[family.aliases.index(alias)]
        raise KeyError(alias)

    def __iter__(self) -> Iterator[str]:
        return (alias for family in reversed(FAMILIES) for alias in family.aliases)

    def __len__(self) -> int:
        return sum(len(family.aliases) for family in FAMILIES)


def _family(cls: type[BasePolicy] | type[RolloutBuffer]) -> Family:
    """Return the family of a class of policies or of rollout buffers."""
    modules = [base.__module__ for base in cls.__mro__]
    found = (family for family in FAMILIES if any(module.startswith(family.package) for module in modules))
    return next(found, FAMILIES[-1])


def kind_of(policy: ActorCriticPolicy) -> PolicyKind:
    """Return the kind of a policy, which evaluates it."""
    return kind_of_class(type(policy))(policy)


@cache
def kind_of_class(cls: type[BasePolicy]) -> type[PolicyKind]:
    """Return the kind of the policies of a class."""
    return _family(cls).kind()


def check_kl(policy: ActorCriticPolicy) -> None:
    """Check that the KL of a policy's distributions is known.

    :raises MissingKLError: if it is not
    """
    divergences_of(policy.action_dist)
    kind_of(policy).check_distribution()


def make_policy_and_buffer(model: OnPolicyAlgorithm) -> None:
    """Set up a model as SB3 does, but with a rollout buffer that has columns for the old parameters.

    :raises ArgumentError: if the model cannot train the policy, or the buffer cannot hold the policy's rollouts
    """
    model._setup_lr_schedule()
    model.set_random_seed(model.seed)
    buffer_class = _buffer_class(model)
    model.policy = kind_of_class(model.policy_class).make_policy(model).to(model.device)
    kind = kind_of(model.policy)
    make, rows = kind.buffer_class(buffer_class), layout_of(model.action_space).rows
    model.rollout_buffer = make(
        model.n_steps, model.observation_space, rows, device=model.device, gamma=model.gamma,
        gae_lambda=current_value("gae_lambda", model.gae_lambda, 1.0, FRACTION), n_envs=model.n_envs,
        **kind.buffer_arguments(model), **model.rollout_buffer_kwargs,
    )  # fmt: skip
    model.rollout_buffer_class = buffer_class  # Saved models name this class, and load without this package.
    model._maybe_recommend_cpu()


def _buffer_class(model: OnPolicyAlgorithm) -> type[RolloutBuffer]:
    kind = kind_of_class(model.policy_class)
    suitable = kind.buffers[isinstance(model.observation_space, spaces.Dict)]
    given = model.rollout_buffer_class or suitable
    # With SB3's buffers, a user's class may hold dictionaries even if it derives from SB3's class for arrays.
    takes_sb3s = kind.buffers == PolicyKind.buffers
    fits = issubclass(given, suitable) and _family(given) is _family(suitable)
    if not (_family(given) is FAMILIES[-1] if takes_sb3s else fits):
        raise ArgumentError(
            f"rollout_buffer_class={given} cannot hold the rollouts of a {model.policy_class.__name__}; "
            f"use {suitable.__name__} or a subclass of it"
        )
    return given
