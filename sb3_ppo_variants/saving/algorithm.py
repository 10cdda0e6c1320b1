"""The base class of algorithms that can be saved, loaded and resumed."""

import io
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import open_path, recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, TensorDict
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments.checks import choose_device
from sb3_ppo_variants.arguments.rules import COUNT
from sb3_ppo_variants.envs.adapter import adapted
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError
from sb3_ppo_variants.guards import capabilities
from sb3_ppo_variants.processes import ALONE, Processes
from sb3_ppo_variants.processes.statistics import Statistics
from sb3_ppo_variants.saving.archive import read_archive
from sb3_ppo_variants.saving.atomic import write_atomically
from sb3_ppo_variants.saving.checkpoint import find_checkpoint
from sb3_ppo_variants.saving.conversion import attributes, converted
from sb3_ppo_variants.saving.environments import OF_EPISODES
from sb3_ppo_variants.saving.fit import check_class, check_parameters
from sb3_ppo_variants.saving.random_state import kept_random_state
from sb3_ppo_variants.saving.reading import read_values
from sb3_ppo_variants.saving.run import Run
from sb3_ppo_variants.saving.same_run import check_same_run
from sb3_ppo_variants.saving.strangers import built_within
from sb3_ppo_variants.saving.values import plain_forms

Self = TypeVar("Self", bound="SavedAlgorithm")


class SavedAlgorithm(OnPolicyAlgorithm):
    """An on-policy algorithm whose files are crash-safe and checked, and whose training can be resumed."""

    @staticmethod
    def _wrap_env(env: GymEnv | VectorEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        if isinstance(env, str):
            raise ArgumentError(
                f"env={env!r} is the id of an environment, which only constructors take: pass an environment, such as "
                f"gymnasium.make({env!r})"
            )
        if isinstance(env, VectorEnv):
            env = adapted(env, monitor_wrapper)
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
    def run(self) -> Run:
        """The state of the run, for checkpoints."""
        return Run()

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics of ``VecNormalize`` that the processes have in common."""
        return Statistics()

    def save(
        self,
        path: str | Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """Save the model in a file that SB3 can also read.

        Whatever happens during the save, either the complete old file or the complete new one is there: the new file is
        written next to the old one, synced to disk and renamed. A file that cannot be replaced is overwritten in place,
        with a warning. As in SB3, a path without a suffix gets ``.zip``. If several processes train together, only
        rank 0 writes to a path; an open file belongs to the process that opened it.

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
        plain = plain_forms({name: getattr(self, name) for name in archive.pickled})
        content = archive.with_note({"classes": classes, "plain": plain})
        if isinstance(path, str | Path):
            write_atomically(_destination(Path(path)), content)
        else:
            open_path(path, "w").write(content)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "run", "statistics", *OF_EPISODES]

    @classmethod
    def load(
        cls: type[Self],
        path: str | Path | io.BufferedIOBase,
        env: GymEnv | VectorEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        *,
        weights_only: bool = False,
        reseed: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a model from a file of this class, or of SB3's or sb3-contrib's PPO, after checking the file.

        :param path: the file
        :param env: an environment to train on; predictions do not need one
        :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``
        :param custom_objects: values that replace those in the file
        :param print_system_info: whether to print information about the system on which the file was saved
        :param force_reset: whether training begins with a reset of ``env``
        :param weights_only: whether to read only tensors and plain values, and unpickle nothing. Set this for files
            from people you do not trust: as in SB3, unpickling runs any code that the file contains
        :param reseed: whether to seed the global random generators with the model's seed, as SB3 does
        :param kwargs: arguments of the constructor that override those in the file, or other attributes to set
        :raises ArgumentError: if an attribute has a value that is not allowed, or that needs other networks
        :raises DamagedFileError: if the file is damaged or has values that no model can have, naming the part; an
            :class:`~sb3_ppo_variants.OtherClassError` if the file belongs to another class
        :raises PickledValueError: with ``weights_only``, if the model needs a pickled value, saying what to pass for it
        """
        check_class(cls, archive := read_archive(path))
        if isinstance(env, VectorEnv):
            env = adapted(env, monitored=True)
        values = read_values(cls, archive, env, custom_objects, kwargs, weights_only)
        device = choose_device(device, values["policy_class"], values.get("policy_kwargs"))
        built = built_within(archive) if weights_only else nullcontext()
        with nullcontext() if reseed else kept_random_state(), built:
            file = archive.with_data(dict.fromkeys(values))
            try:
                return super().load(file, env, device, values, print_system_info, force_reset)
            except MemoryError as error:
                raise DamagedFileError(archive.name, "the model", f"does not fit into memory: {error}") from error
            except DamagedFileError as error:  # Raised by set_parameters(), which does not know the file name.
                raise type(error)(archive.name, error.part, error.fault) from error

    @classmethod
    def from_ppo(
        cls: type[Self],
        ppo: BaseAlgorithm | str | Path | io.BufferedIOBase,
        env: GymEnv | VectorEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        *,
        weights_only: bool = False,
        reseed: bool = False,
        **arguments: Any,
    ) -> Self:
        """Convert a model of SB3's PPO, or of another class of this package, into a model of this class.

        The new model keeps parameters, optimizers, hyperparameters and counters. Arguments of the objective, such as
        ``desired_kl``, get their defaults unless you pass them, except that ``PPOClip`` keeps the ``clip_range``.
        ``PPOCustom`` needs an ``objective``.

        :param ppo: a model, or a file of one
        :param env: an environment to train on; ``None`` keeps that of the model
        :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``
        :param custom_objects: values that replace those in the file
        :param weights_only: as in :meth:`load`
        :param reseed: whether to seed the global random generators with the model's seed, as in :meth:`load`
        :param arguments: arguments of the constructor that override those of ``ppo``
        :raises ArgumentError: if there is no such argument, or if its value is not allowed or needs other networks
        :raises DamagedFileError: if the file is damaged
        :raises OtherClassError: if ``ppo`` belongs to an algorithm other than PPO
        """
        if isinstance(ppo, BaseAlgorithm) and env is None:
            env = ppo.get_env()
        file = converted(cls, ppo, arguments)
        values = attributes(cls, file, arguments)
        return cls.load(file, env, device, custom_objects, weights_only=weights_only, reseed=reseed, **values)

    def set_parameters(
        self,
        load_path_or_dict: str | Path | io.BufferedIOBase | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """Check the parameters of the networks and the state of the optimizers, then set them.

        :param load_path_or_dict: a file, or states in the format of ``get_parameters()``
        :param exact_match: whether the states must be complete and have no other parameters
        :param device: the device on which to load the parameters in a file
        :raises DamagedFileError: if the parameters do not fit this model, naming the part
        """
        name, parameters = "the given parameters", load_path_or_dict
        if not isinstance(parameters, dict):
            archive = read_archive(parameters)
            name, parameters = archive.name, archive.states(get_device(device))
        names = self._get_torch_save_params()[0] if exact_match else parameters
        owners = {owner: recursive_getattr(self, owner, None) for owner in names}
        check_parameters(owners, parameters, name, exact_match)
        super().set_parameters(parameters, exact_match, device)

    @classmethod
    def resume(
        cls: type[Self],
        path: str | Path,
        env: GymEnv,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
    ) -> Self:
        """Continue a run from a checkpoint of :class:`~sb3_ppo_variants.ExactCheckpointCallback`.

        Then call ``model.learn(model.remaining_timesteps, reset_num_timesteps=False, callback=...)`` with the callbacks
        of the run. Training then continues exactly as the run would have, bit for bit. The state of the global random
        generators is restored.

        :param path: a checkpoint, or a folder of checkpoints, of which the newest undamaged one is used
        :param env: an environment created like that of the run, with the same wrappers
        :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``
        :param custom_objects: values that replace those in the file
        :return: the model
        :raises FileNotFoundError: if there is no checkpoint
        :raises DamagedFileError: if all checkpoints are damaged, naming them
        :raises ArgumentError: if ``env`` is None, or if the number of environments or processes, or the
            ``VecNormalize`` wrappers of ``env``, differ from those of the run
        """
        if env is None:
            raise ArgumentError("env=None, but resume() needs an environment like that of the run")
        checkpoint = find_checkpoint(Path(path))
        model = cls.load(checkpoint.model_file, env, device, custom_objects)
        model.run.resume(model, checkpoint)
        return model

    @classmethod
    def resume_or_start(
        cls: type[Self], path: str | Path, policy: Any, env: GymEnv | VectorEnv | str, **arguments: Any
    ) -> Self:
        """Resume the run in a folder of checkpoints, or create a new model if there are none.

        Use this with :meth:`learn_to` in scripts that are submitted repeatedly. Functions, such as schedules, and
        your own objects that are not dataclasses cannot be compared with those of the run, which continues with its
        own.

        :param path: the folder of the checkpoints
        :param policy: as for the constructor
        :param env: as for the constructor
        :param arguments: further arguments of the constructor
        :return: the model
        :raises ArgumentError: if an argument other than ``device``, ``verbose`` and ``tensorboard_log``, passed or by
            default, differs from that of the run, or as in :meth:`resume`
        :raises DamagedFileError: if all checkpoints are damaged, naming them
        """
        model = cls(policy, env, **arguments)  # type: ignore[arg-type]
        try:
            checkpoint = find_checkpoint(Path(path))
        except FileNotFoundError:
            return model
        assert model.env is not None
        resumed = cls.resume(checkpoint.folder, model.env, model.device)
        check_same_run(Path(path), model, resumed, checkpoint.arguments)
        resumed.verbose, resumed.tensorboard_log = model.verbose, model.tensorboard_log
        return resumed

    def learn_to(self: Self, total_timesteps: int, callback: MaybeCallback = None, **arguments: Any) -> Self:
        """Train until the run has taken this many environment steps. Do nothing if it already has.

        :param total_timesteps: number of steps of the whole run, rounded up to whole rollouts
        :param callback: callback(s) called at every step
        :param arguments: further arguments of ``learn``, except ``reset_num_timesteps``
        :return: the model
        :raises ArgumentError: if ``reset_num_timesteps`` is passed, or as in ``learn``
        """
        if "reset_num_timesteps" in arguments:
            raise ArgumentError("learn_to() takes no reset_num_timesteps, because it continues the run: use learn()")
        COUNT.check("total_timesteps", total_timesteps)
        missing = total_timesteps - self.num_timesteps
        if missing > 0:
            begins = self.num_timesteps == 0 and self.run.resumed_from(self) is None
            self.learn(missing, callback, reset_num_timesteps=begins, **arguments)
        return self

    @property
    def remaining_timesteps(self) -> int:
        """The number of environment steps that the last call of ``learn`` has not taken yet."""
        return max(self._total_timesteps - self.num_timesteps, 0)

    def dump_logs(self, iteration: int = 0) -> None:
        """Write the log as SB3 does, if it is due after this rollout.

        :param iteration: number of the rollout within this call of ``learn``; 0 to write the log unconditionally
        """
        if iteration == 0 or self.run.is_logged(iteration):
            super().dump_logs(iteration and self.run.iteration(iteration))


def _destination(path: Path) -> Path:
    """Return the path that SB3 would write to, and create its folder if it does not exist."""
    if path.suffix == "":
        path = Path(f"{path}.zip")
    if path.is_dir():
        warnings.warn(f"Path '{path}' is a folder. Will save instead to {path}_2")
        return _destination(Path(f"{path}_2"))
    if not path.parent.exists():
        warnings.warn(f"Path '{path.parent}' does not exist. Will create it.")
        path.parent.mkdir(parents=True, exist_ok=True)
    return path
