"""The errors of this package."""

from typing import NoReturn


class ArgumentError(ValueError, AssertionError):
    """An argument has a value that is not allowed.

    It is also an ``AssertionError``, because SB3 raises that for some of the same mistakes.
    """


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """Raise an error that names the argument, its value and what is allowed.

    :raises ArgumentError: always
    """
    raise ArgumentError(f"{name}={value!r} is not allowed; allowed: {allowed}")


def installation(extra: str) -> str:
    """Return the command that installs the dependencies of an optional feature, for the end of an error message.

    :param extra: name of the extra in ``setup.cfg``
    """
    return f"pip install -e '.[{extra}]'  # in a clone of sb3_ppo_variants"


class DamagedFileError(ValueError, RuntimeError):
    """A saved file is damaged or incomplete, or contains values that no model can have.

    It is also a ``RuntimeError``, because PyTorch raises that for some of the same faults.

    :param file: the file
    :param part: the part of it that is at fault, such as ``"policy.optimizer"``
    :param fault: what is wrong with that part, such as ``"is missing"``
    """

    def __init__(self, file: str, part: str, fault: str):
        super().__init__(file, part, fault)
        self.file = file
        self.part = part
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.file}: {self.part} {self.fault}"


class OtherClassError(DamagedFileError):
    """A saved file belongs to a different class than the one that loads it. The file itself may be fine.

    It is also a :class:`DamagedFileError`, so one ``except`` clause catches every problem with a file.
    """


class PickledValueError(ValueError):
    """A file contains pickled values, which ``weights_only=True`` does not unpickle."""


class GuardError(ValueError):
    """Training stopped at an invalid value. The policy stays as the last good update left it.

    :param quantity: the quantity that is invalid: ``"reward"``, ``"observation"``, ``"gradient"``, ...
    :param problem: the value and what is wrong with it
    :param env_index: index of the environment that returned the value, if one did
    :param step: the model's ``num_timesteps`` at that time
    """

    def __init__(self, quantity: str, problem: str, env_index: int | None = None, step: int | None = None):
        super().__init__(quantity, problem, env_index, step)
        self.quantity = quantity
        self.problem = problem
        self.env_index = env_index
        self.step = step

    def __str__(self) -> str:
        of = "" if self.env_index is None else f" of environment {self.env_index}"
        at = "" if self.step is None else f" at step {self.step}"
        return f"the {self.quantity}{of}{at} is {self.problem}"


class NonFiniteError(GuardError):
    """A number is NaN or infinite."""


class EnvOutputError(GuardError):
    """An environment returned something with the wrong type, shape or range."""


class CallbackError(TypeError):
    """A callback returned ``None`` instead of saying whether to continue training."""


class WorkerError(RuntimeError):
    """A worker process of a ``SubprocVecEnv`` raised an error, ended or did not answer.

    :param env_index: index of the worker's environment
    :param problem: what happened, with the worker's traceback if it sent one
    """

    def __init__(self, env_index: int, problem: str):
        super().__init__(env_index, problem)
        self.env_index = env_index
        self.problem = problem

    def __str__(self) -> str:
        return f"the worker of environment {self.env_index} {self.problem}"


class ProcessError(RuntimeError):
    """One of several processes that train together has ended, or has diverged from the others."""
