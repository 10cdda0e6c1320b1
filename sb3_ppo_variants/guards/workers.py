"""An error that names the worker of a ``SubprocVecEnv`` that ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from sb3_ppo_variants.errors import WorkerError

# For a process to end after its pipe has closed.
SECONDS_TO_END = 1.0


def how_it_ended(exit_code: int | None) -> str:
    """An exit code in words."""
    if exit_code is None:
        return "closed its pipe"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"


@contextmanager
def named_workers(env: VecEnv) -> Iterator[None]:
    """Within it a broken pipe raises a ``WorkerError`` with the index of the worker that ended."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        if not isinstance(env, SubprocVecEnv):
            raise
        ended = wait([process.sentinel for process in env.processes], SECONDS_TO_END)
        for i, process in enumerate(env.processes):
            if process.sentinel in ended:
                process.join(SECONDS_TO_END)
                advice = "SafeSubprocVecEnv takes the same arguments and reports the traceback of a worker that raises"
                raise WorkerError(i, f"{how_it_ended(process.exitcode)}; {advice}") from error
        raise
