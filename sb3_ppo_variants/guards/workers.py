"""Names the worker process of a ``SubprocVecEnv`` that ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from sb3_ppo_variants.errors import WorkerError

# Between the end of a process's pipe and that of the process.
SECONDS_TO_END = 1.0


def how_it_ended(exit_code: int | None) -> str:
    """An exit code in words."""
    if exit_code is None:
        return "closed its pipe"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


@contextmanager
def named_workers(env: VecEnv) -> Iterator[None]:
    """Within it a broken pipe to a worker is an error with the worker's index.

    :param env: any vectorised environment, without wrappers
    """
    try:
        yield
    except (EOFError, ConnectionError) as error:
        if not isinstance(env, SubprocVecEnv):
            raise
        ended = wait([process.sentinel for process in env.processes], SECONDS_TO_END)
        for i, process in enumerate(env.processes):
            if process.sentinel in ended:
                process.join(SECONDS_TO_END)
                advice = "SafeSubprocVecEnv has the same arguments and shows the traceback of a worker"
                raise WorkerError(i, f"{how_it_ended(process.exitcode)}; {advice}") from error
        raise
