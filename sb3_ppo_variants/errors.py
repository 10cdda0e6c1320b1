"""The errors of this package."""

from typing import NoReturn


class ArgumentError(ValueError, AssertionError):
    """An argument has a value that is not allowed.

    It is an ``AssertionError`` too, because that is what SB3 raises for some of the same mistakes.
    """


def refuse(name: str, value: object, allowed: str) -> NoReturn:
    """:raises ArgumentError: always, naming the argument, its value and what is allowed"""
    raise ArgumentError(f"{name}={value!r} is not allowed; allowed: {allowed}")


def installation(extra: str) -> str:
    """The command that installs what an optional feature needs, for its error to end with.

    :param extra: name of the extra in ``setup.cfg``
    """
    return f"pip install '.[{extra}]'  # in a clone of sb3_ppo_variants"


class DamagedFileError(ValueError, RuntimeError):
    """A saved file is damaged or incomplete, or holds values that no model can have.

    It is a ``RuntimeError`` too, because that is what PyTorch raises for some of the same faults.

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
    """A saved file is of another class than the one that is asked to load it. The file itself may be whole.

    It is a :class:`DamagedFileError` too, so that one clause catches all that is wrong with a file.
    """


class PickledValueError(ValueError):
    """A file holds pickled values that ``weights_only=True`` does not unpickle."""


class GuardError(ValueError):
    """Training stopped at a value that would have spoiled it; the policy is as the last good update left it.

    :param quantity: what has the value: ``"reward"``, ``"observation"``, ``"gradient"``, ...
    :param problem: the value and what is wrong with it
    :param env_index: index of the environment that it came from, if it came from one
    :param step: the model's ``num_timesteps`` when it came
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
    """An environment returned something of a wrong type, shape or range."""


class CallbackError(TypeError):
    """A callback did not say whether to go on."""


class WorkerError(RuntimeError):
    """A process of a ``SubprocVecEnv`` raised, ended or did not answer.

    :param env_index: index of its environment
    :param problem: what happened, with the traceback of the process if it sent one
    """

    def __init__(self, env_index: int, problem: str):
        super().__init__(env_index, problem)
        self.env_index = env_index
        self.problem = problem

    def __str__(self) -> str:
        return f"the worker of environment {self.env_index} {self.problem}"


class ProcessError(RuntimeError):
    """A process that trains together with others is gone, or does something else than they do."""
