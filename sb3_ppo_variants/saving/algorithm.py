"""An algorithm whose files are crash-safe, and checked when they are read."""

import io
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import open_path, recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv, TensorDict
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments.checks import choose_device
from sb3_ppo_variants.arguments.rules import RULES
from sb3_ppo_variants.envs.adapter import adapt
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError
from sb3_ppo_variants.guards import capabilities
from sb3_ppo_variants.processes import ALONE, Processes
from sb3_ppo_variants.processes.moments import Statistics
from sb3_ppo_variants.saving.archive import File, read_archive
from sb3_ppo_variants.saving.atomic import write_atomically
from sb3_ppo_variants.saving.attributes import check_class, convert, get_plain_forms, read_attributes
from sb3_ppo_variants.saving.plain import Values
from sb3_ppo_variants.saving.state import LSTM_STATES, keep_random_state

Self = TypeVar("Self", bound="FileAlgorithm")


class FileAlgorithm(OnPolicyAlgorithm):
    """An on-policy algorithm whose files are crash-safe and checked."""

    optional_states: ClassVar[Sequence[str]] = ()
    """Attributes whose state a file may lack; they are ``None`` then. A model in which one is ``None`` ignores it."""

    @staticmethod
    def _wrap_env(env: GymEnv | VectorEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        if isinstance(env, str):
            raise ArgumentError(
                f"env={env!r} is the id of an environment, which only constructors take: pass an environment, such as "
                f"gymnasium.make({env!r})"
            )
        if isinstance(env, VectorEnv):
            env = adapt(env, monitor_wrapper)
        return OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed all random generators and the environments; see SB3.

        :raises ArgumentError: if the environments cannot be seeded
        """
        env, self.env = self.env, None
        try:
            super().set_random_seed(seed)
        finally:
            self.env = env
        if seed is not None and env is not None:
            capabilities.seed(env, seed)

    @property
    def processes(self) -> Processes:
        """The processes that train this model together."""
        return ALONE

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics of ``VecNormalize`` that the processes have in common."""
        return Statistics()

    def save(self, path: File, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """Save the model in a file that SB3 can also read.

        Whatever happens during the save, either the complete old file or the complete new one is there: the new file is
        written next to the old one, synced to disk and renamed. As in SB3, a path without a suffix gets ``.zip``. If
        several processes train together, only rank 0 writes to a path; an open file belongs to the process that opened
        it.

        :param path: a path or an open file
        :param exclude: attributes to leave out
        :param include: attributes to save that would otherwise be left out
        :raises OSError: if the file cannot be written
        """
        if self.processes.rank > 0 and isinstance(path, str | Path):
            return
        buffer = io.BytesIO()
        super().save(buffer, exclude, include)
        archive = read_archive(buffer)
        classes = [cls.__name__ for cls in type(self).__mro__]
        plain = get_plain_forms({name: getattr(self, name) for name in archive.pickled})
        content = archive.with_note({"classes": classes, "plain": plain}).to_file().getvalue()
        if isinstance(path, str | Path):
            write_atomically(_find_destination(Path(path)), content)
        else:
            open_path(path, "w").write(content)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "statistics", LSTM_STATES]

    @classmethod
    def load(
        cls: type[Self],
        path: File,
        env: GymEnv | VectorEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: Values | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        *,
        weights_only: bool = False,
        reseed: bool = False,
        **kwargs: object,
    ) -> Self:
        """Load a model from a file of this class, or of SB3's or sb3-contrib's PPO, after checking the file.

        :param path: the file
        :param env: an environment to train on; predictions do not need one
        :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``
        :param custom_objects: values that replace those in the file
        :param print_system_info: whether to print information about the system on which the file was saved
        :param force_reset: whether training begins with a reset of ``env``
        :param weights_only: whether to read only tensors and plain values, and unpickle nothing. Set this for files
            from people you do not trust: as in SB3, unpickling runs any code that the file contains. It does not bound
            the memory that a file takes
        :param reseed: whether to seed the global random generators with the model's seed, as SB3 does
        :param kwargs: arguments of the constructor that override those in the file, or other attributes to set
        :raises ArgumentError: if there is no such attribute, or it has a value that is not allowed, or that needs other
            networks
        :raises DamagedFileError: if the file is damaged or does not fit its class, naming the part; an
            :class:`~sb3_ppo_variants.OtherClassError` if the file belongs to another class
        :raises PickledValueError: with ``weights_only``, if the model needs a pickled value, saying what to pass for it
        """
        archive = read_archive(path)
        check_class(cls, archive)
        if isinstance(env, VectorEnv):
            env = adapt(env, monitored=True)
        values = read_attributes(cls, archive, env, custom_objects, kwargs, weights_only)
        device = choose_device(device, values["policy_class"], values.get("policy_kwargs"))
        # SB3 sets the values instead of those in the file.
        file = archive.with_data(dict.fromkeys(values)).to_file()
        with nullcontext() if reseed else keep_random_state():
            try:
                model = super().load(file, env, device, values, print_system_info, force_reset)
            except DamagedFileError as error:  # Raised by set_parameters(), which does not know the file name.
                raise type(error)(archive.name, error.part, error.fault) from error
        for name, weights in model.policy.named_parameters():
            if not th.isfinite(weights).all():
                warnings.warn(f"{archive.name}: {name} of the policy has numbers that are not finite")
        return model

    @classmethod
    def from_ppo(
        cls: type[Self],
        ppo: BaseAlgorithm | File,
        env: GymEnv | VectorEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: Values | None = None,
        *,
        weights_only: bool = False,
        reseed: bool = False,
        **arguments: Any,
    ) -> Self:
        """Convert a model of SB3's PPO, or of another class of this package, into a model of this class.

        The new model keeps parameters, optimizers, hyperparameters and counters. Arguments of the objective, such as
        ``desired_kl``, get their defaults unless you pass them, except that ``PPOClip`` keeps the ``clip_range``.
        ``PPOCustom`` needs an ``objective``.

        The arguments that are not listed are those of :meth:`load`.

        :param ppo: a model, or a file of one
        :param env: an environment to train on; ``None`` keeps that of the model
        :param arguments: arguments of the constructor that override those of ``ppo``
        :raises ArgumentError: if there is no such argument, if the class does not keep it as an attribute, or if its
            value is not allowed or needs other networks
        :raises DamagedFileError: if the file is damaged
        :raises OtherClassError: if ``ppo`` belongs to an algorithm other than PPO
        """
        if isinstance(ppo, BaseAlgorithm) and env is None:
            env = ppo.get_env()
        file, arguments = convert(cls, ppo, env, arguments)
        return cls.load(file, env, device, custom_objects, weights_only=weights_only, reseed=reseed, **arguments)

    def set_parameters(
        self, load_path_or_dict: File | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """Set the parameters of networks and the states of optimizers: all of them, or none if one does not fit.

        :param load_path_or_dict: a file, or states in the format of ``get_parameters()``
        :param exact_match: whether the states must be complete and have no other parameters
        :param device: has no effect, because the parameters are copied to the device of the model
        :raises DamagedFileError: if the parameters do not fit this model, naming the part
        """
        name, parameters = "the given parameters", cast(Values, load_path_or_dict)
        if not isinstance(load_path_or_dict, dict):
            RULES["device"].check("device", device)
            archive = read_archive(load_path_or_dict)
            name, parameters = archive.name, archive.states
        own, optional = set(self._get_torch_save_params()[0]), set(self.optional_states)
        parameters = {owner: state for owner, state in parameters.items() if owner in own or owner not in optional}
        owners = {part: recursive_getattr(self, part, None) for part in parameters}
        for part, owner in owners.items():  # Names that are no part of the model come first: they may be misspelt.
            if not isinstance(owner, th.nn.Module | th.optim.Optimizer):
                raise DamagedFileError(name, part, "is not part of this model")
        for part in sorted(own - optional - parameters.keys()) if exact_match else ():
            raise DamagedFileError(name, part, "is missing")
        before = {part: deepcopy(owner.state_dict()) for part, owner in owners.items()}
        for part, owner in owners.items():
            try:
                strict = {"strict": exact_match} if isinstance(owner, th.nn.Module) else {}
                owner.load_state_dict(parameters[part], **strict)
            except Exception as error:  # Modules and optimizers may raise anything for the states of others.
                for set_before, state in before.items():
                    owners[set_before].load_state_dict(state)
                raise DamagedFileError(name, part, f"does not fit this model: {error}") from error
        if "policy" in parameters:
            for missing in optional - parameters.keys():
                setattr(self, missing, None)


def _find_destination(path: Path) -> Path:
    """Find the path that SB3 would write to, and create its folder if it does not exist."""
    if path.suffix == "":
        path = Path(f"{path}.zip")
    if path.is_dir():
        warnings.warn(f"Path '{path}' is a folder. Will save instead to {path}_2")
        return _find_destination(Path(f"{path}_2"))
    if not path.parent.exists():
        warnings.warn(f"Path '{path.parent}' does not exist. Will create it.")
        path.parent.mkdir(parents=True, exist_ok=True)
    return path
