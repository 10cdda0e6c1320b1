"""An algorithm whose files are crash-safe and checked when they are read, and whose runs can be resumed."""

import io
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property, partial
from inspect import isabstract
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar, cast

import numpy as np
import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file, open_path, recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, TensorDict
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.arguments import LEARN_RULES, Rule, Values, check_arguments, choose_device, list_arguments
from sb3_ppo_variants.collector import LSTM_STATES
from sb3_ppo_variants.envs.adapter import adapt, seed_env
from sb3_ppo_variants.envs.outputs import check_observables
from sb3_ppo_variants.errors import ArgumentError, DamagedFileError
from sb3_ppo_variants.generators import generators_kept
from sb3_ppo_variants.processes import EPISODES, Processes, current
from sb3_ppo_variants.saving.checkpoint import ATTRIBUTES, MODEL, TrainingRun, describe_arguments, find_checkpoint
from sb3_ppo_variants.saving.files import CLASSES, File, find_unreadable, read_archive, serialize, write_atomically
from sb3_ppo_variants.saving.structure import COMPILED, describe_changes, describe_structure, find_changes

Self = TypeVar("Self", bound="SavedAlgorithm")
# Arguments of the constructor for which None stands for an empty dict.
EMPTY = ("policy_kwargs", "rollout_buffer_kwargs")
SPACES = ("observation_space", "action_space")
# Arguments that determine the networks and the optimizers.
STRUCTURE = {"policy", "policy_class", "policy_kwargs", "use_sde", "updates"}
# The attribute of a model that is being loaded: the name of the file, the structure in it, and whether to use another.
LOADING = "_loading"

if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):
        """A class method that makes a model, and that instances refuse because it would leave them as they are."""

        def __get__(self, instance, owner=None):
            """Return the method of a class, or a function that raises an error."""
            return super().__get__(None, owner) if instance is None else partial(_refuse_instance, owner, self.__name__)


def _refuse_instance(cls: type, name: str, *_: object, **__: object) -> NoReturn:
    raise ArgumentError(
        f"{name}() makes a new model and leaves this one as it is: write model = {cls.__name__}.{name}(...), or load "
        "parameters into this model with set_parameters()"
    )


class SavedAlgorithm(OnPolicyAlgorithm):
    """An on-policy algorithm whose files are crash-safe and checked, and whose training can be resumed."""

    rules: ClassVar[Mapping[str, Rule]] = {}
    """The allowed values of each argument."""
    reads_sb3s_ppo: ClassVar[bool] = False
    """Whether it has the objective of SB3's PPO, so that it can load its files."""
    optional_states: ClassVar[Sequence[str]] = ()
    """Attributes whose state a file may lack; they are ``None`` then. A model in which one is ``None`` ignores it."""
    data_parallel: bool | Literal["auto"]

    @staticmethod
    def _wrap_env(env: GymEnv | VectorEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        if isinstance(env, str):
            raise ArgumentError(
                f"env={env!r} is the id of an environment, which only constructors take: pass an environment, such as "
                f"gymnasium.make({env!r})"
            )
        name = "single_observation_space" if isinstance(env, VectorEnv) else "observation_space"
        check_observables(getattr(env, name, None))
        if isinstance(env, VectorEnv):
            env = adapt(env, monitor_wrapper)
        return OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed all random generators and the environments; see SB3.

        :raises ArgumentError: if the environments cannot be seeded
        """
        if seed is not None:
            if LOADING in vars(self):  # GPUs that are not in use yet have no state that load() could restore.
                th.default_generator.manual_seed(seed)
            else:
                set_random_seed(seed, using_cuda=self.device.type == "cuda")
            self.action_space.seed(seed)
            if self.env is not None:
                seed_env(self.env, seed)

    @property
    def processes(self) -> Processes:
        """The processes that train this model together."""
        return current(self.data_parallel)

    @cached_property
    def run(self) -> TrainingRun:
        """The state of the run, for checkpoints."""
        return TrainingRun()

    # Files

    def save(self, path: File, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """Save the model in a file that SB3 can also read.

        Whatever happens meanwhile, either the complete old file or the complete new one is there. As in SB3, a path
        without a suffix gets ``.zip``. If several processes train together, only rank 0 writes to a path.

        :param path: a path or an open file
        :param exclude: attributes to leave out
        :param include: attributes to save that would otherwise be left out
        :raises ArgumentError: if a file cannot hold a value that the model needs, naming it. It warns of others, and
            leaves them out
        :raises OSError: if the file cannot be written
        """
        if self.processes.rank > 0 and isinstance(path, str | Path):
            return
        buffer = io.BytesIO()
        super().save(buffer, exclude=vars(self))  # The states alone.
        for name, state in self.get_parameters().items():
            if found := find_unreadable(name, state):
                raise ArgumentError(f"{found}, which no file can hold: keep numbers, text and tensors in states")
        states = {name.partition(".")[0] for names in self._get_torch_save_params() for name in names}
        excluded = {*(exclude or ()), *self._excluded_save_params()}.difference(include or ()) | states
        values = {name: value for name, value in vars(self).items() if name not in excluded}
        data, forms = serialize(values, {*SPACES, *_as_attributes(list_arguments(type(self)))})
        note = {"classes": self._class_names(), "plain": forms, "structure": describe_structure(self)}
        archive = replace(read_archive(buffer), note=note, data={**data, CLASSES: self._class_names()})
        content = archive.to_file().getvalue()
        if isinstance(path, str | Path):
            path = Path(path) if Path(path).suffix else Path(f"{path}.zip")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        else:
            open_path(path, "w").write(content)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "run", LSTM_STATES]

    def get_parameters(self) -> dict[str, Values]:
        """Get the states of networks and optimizers; see SB3. No file can bring back the numbers of NumPy in them."""
        states = super().get_parameters()
        for state in states.values():
            for name in [*state]:
                # What was compiled has the same parameters as before.
                state[name.replace(COMPILED, "")] = _as_python(state.pop(name), name == "param_groups")
        return states

    @class_only
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
        **kwargs: object,
    ) -> Self:
        """Load a model from a file of this class, or of SB3's or sb3-contrib's PPO, after checking the file.

        Unlike in SB3, the global random generators stay as they are.

        :param path: the file
        :param env: an environment to train on; predictions do not need one
        :param device: ``"cpu"``, ``"cuda"``, ... or ``"auto"``
        :param custom_objects: values that replace those in the file
        :param print_system_info: whether to print information about the system on which the file was saved
        :param force_reset: whether training begins with a reset of ``env``
        :param weights_only: whether to read only tensors and plain values, and unpickle nothing. Set this for files
            from people you do not trust: as in SB3, unpickling runs any code that the file contains. It does not bound
            the memory that a file takes
        :param kwargs: arguments of the constructor that override those in the file, or other attributes to set
        :raises ArgumentError: if there is no such attribute, or it has a value that is not allowed, or that needs other
            networks
        :raises DamagedFileError: if the file is damaged or does not fit its class, naming the part; an
            :class:`~sb3_ppo_variants.OtherClassError` if the file belongs to another class
        :raises PickledValueError: with ``weights_only``, if the model needs pickled values, naming them
        """
        archive = read_archive(path)
        archive.check_class(cls._class_names(), cls.reads_sb3s_ppo)
        check_arguments({**(custom_objects or {}), **kwargs}, cls.rules)
        objects, given = _as_attributes(custom_objects or {}), _as_attributes(kwargs)
        for name in given.keys() - archive.data.keys() - _as_attributes(list_arguments(cls)).keys():
            raise ArgumentError(
                f"{cls.__name__} has no argument {name!r} (={given[name]!r}) that can be set when a model is loaded, "
                f"and {archive.name} has no attribute of this name"
            )
        try:
            env = None if env is None else cls._wrap_env(env)
            from_env = {} if env is None else {name: getattr(env, name) for name in SPACES}
            read = archive.attributes(objects, {**from_env, **given}, weights_only)
            # The argument of load() decides about the device, and no file of a stranger what to import, where to write.
            for name in ["device", CLASSES, *(["env", "tensorboard_log"] if weights_only else [])]:
                read.pop(name, None)
            values = {"verbose": 0, **from_env, **_as_attributes(read), **given}
            if isinstance(policy := values["policy_class"], str):
                values["policy_class"] = cls.policy_aliases.get(policy, policy)
            if "_stats_window_size" in {**objects, **given}:
                size = int(values["_stats_window_size"])
                values |= {name: deque(values[name], size) for name in EPISODES if values.get(name) is not None}
            device = choose_device(device, values["policy_class"], values.get("policy_kwargs"))
            values[LOADING] = archive.name, archive.note.get("structure"), not STRUCTURE.isdisjoint({*objects, *kwargs})
            file = replace(archive, data=dict.fromkeys(values)).to_file()  # SB3 takes the values instead.
            with generators_kept():
                return super().load(file, env, device, values, print_system_info, force_reset)
        except DamagedFileError as error:
            if needing := ", ".join(f"{name}={kwargs[name]!r}" for name in kwargs if name in STRUCTURE):
                raise ArgumentError(
                    f"{needing} needs other networks or optimizers than those in {archive.name}: leave it out, or "
                    f"create a new model with it. {error.part.capitalize()} {error.fault}"
                ) from error
            raise

    @class_only
    def from_ppo(
        cls: type[Self],
        ppo: BaseAlgorithm | File,
        env: GymEnv | VectorEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: Values | None = None,
        *,
        weights_only: bool = False,
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
        :raises ArgumentError: if the class keeps no attribute of this name, or if the value is not allowed or needs
            other networks
        :raises DamagedFileError: if the file is damaged
        :raises OtherClassError: if ``ppo`` belongs to an algorithm other than PPO
        """
        structure = describe_structure(ppo) if isinstance(ppo, OnPolicyAlgorithm) else None
        if isinstance(ppo, BaseAlgorithm):
            env, model, ppo = ppo.get_env() if env is None else env, ppo, io.BytesIO()
            ppo.name = f"the given {type(model).__name__}"
            model.save(ppo)
        archive = read_archive(ppo)
        archive.check_class(cls._class_names(), cls.reads_sb3s_ppo, converts=True)
        env = None if env is None else cls._wrap_env(env)
        new = cls(policy=ActorCriticPolicy, env=env, _init_setup_model=False)  # type: ignore[call-arg, arg-type]
        of_any = next(base for base in cls.__mro__ if isabstract(base)).rules  # type: ignore[attr-defined]
        own = cls.rules.keys() - of_any.keys()
        if cls.reads_sb3s_ppo:
            own = {name for name in own if archive.data.get(name) is None}
        known = {*SPACES, "n_envs", *vars(new)}.difference(own)
        data = {name: value for name, value in archive.data.items() if name in known}
        note = {"structure": structure, **archive.note, "classes": cls._class_names()}
        file = replace(archive, note=note, data=data).to_file()
        file.name = archive.name
        return cls.load(file, env, device, custom_objects, weights_only=weights_only, **arguments)

    @classmethod
    def _class_names(cls) -> list[str]:
        """List the names of the class and of its bases, of which those without an objective do not count."""
        bases = [base for base in cls.__mro__ if issubclass(base, SavedAlgorithm) and base is not SavedAlgorithm]
        return [base.__name__ for base in bases if not isabstract(base)]

    def set_parameters(
        self, load_path_or_dict: File | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """Set the parameters of networks and the states of optimizers: all of them, or none if one does not fit.

        :param load_path_or_dict: a file, or states in the format of ``get_parameters()``
        :param exact_match: whether the states must be complete and have no other parameters
        :param device: has no effect, because the parameters are copied to the device of the model
        :raises DamagedFileError: if the parameters do not fit this model
        """
        if isinstance(load_path_or_dict, dict):
            name, given = "the given parameters", load_path_or_dict
        else:
            name = read_archive(load_path_or_dict).name
            _, given, _ = load_from_zip_file(load_path_or_dict, load_data=False, device="cpu")
        name, structure, is_meant = vars(self).pop(LOADING, (name, None, False))
        changes = {} if structure is None else find_changes(structure, describe_structure(self))
        own, optional = set(self._get_torch_save_params()[0]), set(self.optional_states)
        parameters = {owner: state for owner, state in given.items() if owner in own or owner not in optional}
        attributes_before = {each: getattr(self, each) for each in optional}
        states_before = deepcopy(self.get_parameters())
        replaced = {owner: states_before[owner] for owner in changes.keys() & own & parameters.keys() - {"policy"}}
        try:
            if "policy" in parameters:
                vars(self).update(dict.fromkeys(optional - parameters.keys()))
            super().set_parameters(self._renamed({**parameters, **replaced}), exact_match, device)
        except Exception as error:  # Modules and optimizers may raise anything for the states of others.
            vars(self).update(attributes_before)
            super().set_parameters(self._renamed(states_before))
            if changes and not is_meant:
                raise ArgumentError(describe_changes(name, changes)) from error
            raise DamagedFileError(name, "the parameters", f"do not fit this model: {error}") from error
        if told := {name: change for name, change in changes.items() if name in replaced or not is_meant}:
            warnings.warn(describe_changes(name, told))

    def _renamed(self, states: Mapping[str, Any]) -> TensorDict:
        """Name the parameters in states as the networks do, parts of which ``torch.compile`` may have wrapped."""
        renamed = {owner: copy(state) for owner, state in states.items()}
        for owner, state in renamed.items():
            own: Iterable[str] = getattr(recursive_getattr(self, owner, None), "state_dict", dict)()
            names = {name.replace(COMPILED, ""): name for name in own}
            for name in [*state]:
                state[names.get(name.replace(COMPILED, ""), name)] = state.pop(name)
        return renamed

    # Runs

    @class_only
    def resume(
        cls: type[Self],
        path: str | Path,
        env: GymEnv | VectorEnv,
        device: th.device | str = "auto",
        custom_objects: Values | None = None,
    ) -> Self:
        """Continue a run from a checkpoint of :class:`~sb3_ppo_variants.ExactCheckpointCallback`.

        Then call ``model.learn(model.remaining_timesteps, reset_num_timesteps=False, callback=...)`` with the callbacks
        of the run. Training then continues exactly as the run would have, bit for bit. The state of the global random
        generators is restored.

        :param path: a checkpoint, or a folder of checkpoints, of which the newest undamaged one is used
        :param env: an environment created like that of the run, with the same wrappers
        :param device: ``"auto"`` is the device of the run, on which alone training continues exactly
        :param custom_objects: as in :meth:`load`
        :raises FileNotFoundError: if there is no checkpoint
        :raises DamagedFileError: if all checkpoints are damaged, naming them
        :raises ArgumentError: if ``env`` is None, or if the number of environments, processes or ``VecNormalize``
            wrappers differs from that of the run
        """
        if env is None:
            raise ArgumentError("env=None, but resume() needs an environment like that of the run")
        checkpoint = find_checkpoint(Path(path))
        device = checkpoint.device if device == "auto" else device
        # The statistics of VecNormalize come later, so load() need not warn that they are missing.
        model = cls.load(checkpoint.folder / MODEL, env, device, {"normalized": False, **(custom_objects or {})})
        checkpoint.restore(model)
        model.run.last, model.run.resumed_at = checkpoint, (model.num_timesteps, model._n_updates)
        return model

    @class_only
    def resume_or_start(
        cls: type[Self],
        path: str | Path,
        policy: str | type[BasePolicy],
        env: GymEnv | VectorEnv | str,
        **arguments: object,
    ) -> Self:
        """Resume the run in a folder of checkpoints, or create a new model if there are none.

        Use this with :meth:`learn_to` in scripts that are submitted repeatedly. Schedules are compared by some of their
        values, and your own objects that are not dataclasses by their text. All arguments after ``path`` are those of
        the constructor.

        :param path: the folder of the checkpoints
        :raises ArgumentError: if an argument other than ``device``, ``verbose`` and ``tensorboard_log``, passed or by
            default, differs from that of the run, or as in :meth:`resume`
        :raises DamagedFileError: if all checkpoints are damaged, naming them
        """
        model = cls(policy, env, **arguments)  # type: ignore[arg-type]
        try:
            checkpoint = find_checkpoint(Path(path))
        except FileNotFoundError:
            return model
        for name, now in describe_arguments(model).items():
            if now != (before := checkpoint.arguments.get(name)):
                raise ArgumentError(
                    f"{name}={now}, but the run in {checkpoint.folder.parent} has {before}. Choose another folder for "
                    "this run, or pass the arguments of the run in that folder"
                )
        assert model.env is not None
        resumed = cls.resume(checkpoint.folder, model.env, model.device)
        resumed.verbose, resumed.tensorboard_log = model.verbose, model.tensorboard_log
        return resumed

    def learn_to(self: Self, total_timesteps: float, callback: MaybeCallback = None, **arguments: Any) -> Self:
        """Train until the run has taken this many environment steps. Do nothing if it already has.

        :param total_timesteps: number of steps of the whole run, such as 1e6, rounded up to whole rollouts
        :param arguments: further arguments of ``learn``, except ``reset_num_timesteps``
        :raises ArgumentError: as in ``learn``
        """
        LEARN_RULES["total_timesteps"].check("total_timesteps", total_timesteps)
        missing = total_timesteps - self.num_timesteps
        if missing > 0:
            begins = self.num_timesteps == 0 and self.run.resumed_from(self) is None
            self.learn(cast(int, missing), callback, reset_num_timesteps=begins, **arguments)
        return self

    @property
    def remaining_timesteps(self) -> int:
        """The number of environment steps that the last call of ``learn`` has not taken yet."""
        return max(self._total_timesteps - self.num_timesteps, 0)

    def dump_logs(self, iteration: int = 0) -> None:
        """Write the log as SB3 does, if it is due after this rollout.

        :param iteration: number of the rollout within this call of ``learn``; 0 to write the log unconditionally
        """
        number, interval = iteration and self.run.iterations, self.run.log_interval
        if iteration == 0 or interval is None or number % interval == 0:
            super().dump_logs(number)


def _as_python(value: Any, also_arrays: bool = False) -> Any:
    if isinstance(value, np.generic) or (also_arrays and isinstance(value, np.ndarray)):
        return value.tolist()
    if type(value) is dict:
        return {key: _as_python(part, also_arrays) for key, part in value.items()}
    # Such as Adam's betas.
    return type(value)(_as_python(part, also_arrays) for part in value) if type(value) in (list, tuple) else value


def _as_attributes(arguments: Mapping[str, object]) -> Values:
    """Convert arguments of the constructor to the attributes that a model keeps."""
    values = {ATTRIBUTES.get(name, name): value for name, value in arguments.items()}
    return {name: {} if name in EMPTY and value is None else value for name, value in values.items()}
