"""Workers of SB3's ``SubprocVecEnv`` during training: errors name the worker, and each answer matches its command."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from sb3_ppo_variants.errors import WorkerError
from sb3_ppo_variants.guards.exchange import Exchange
from sb3_ppo_variants.guards.outputs import EnvCheck

# How long to wait for a process to end after its pipe has closed.
SECONDS_TO_END = 1.0


def how_it_ended(exit_code: int | None) -> str:
    """Describe an exit code in words."""
    if exit_code is None:
        return "closed its pipe"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"


@contextmanager
def exchanging(env: VecEnv) -> Iterator[None]:
    """Replace each pipe of a ``SubprocVecEnv`` with an :class:`Exchange` while the context is active.

    The exchanges stay in place if an interrupt or an error leaves an answer outstanding.
    """
    if not isinstance(env, SubprocVecEnv) or not all(isinstance(pipe, Connection | Exchange) for pipe in env.remotes):
        yield
        return
    pipes: Any = env.remotes
    exchanges = [
        pipe if isinstance(pipe, Exchange) else Exchange(pipe, i, env.processes[i]) for i, pipe in enumerate(pipes)
    ]
    env.remotes = tuple(exchanges)
    try:
        yield
    finally:
        if all(exchange.clean for exchange in exchanges):
            kept = any(isinstance(pipe, Exchange) for pipe in pipes)
            env.remotes = tuple(exchange.pipe for exchange in exchanges) if kept else pipes
        else:
            env.waiting = False  # Otherwise close() would wait for answers that may already have been received.


def check_answers(env: VecEnv, checks: Sequence[EnvCheck]) -> None:
    """Check the last answer of each worker of a ``SubprocVecEnv``, after stacking them or checking the stack failed.

    :raises GuardError: for the first wrong answer, naming its environment
    """
    exchanges = env.remotes if isinstance(env, SubprocVecEnv) else ()
    for check, exchange in zip(checks, exchanges, strict=False):
        answer = exchange.last if isinstance(exchange, Exchange) else None
        if isinstance(answer, tuple) and len(answer) == 5:
            check.parts(dict(zip(("observation", "reward", "done", "info"), answer, strict=False)))
        elif isinstance(answer, tuple) and len(answer) == 2:
            check.reset(answer)


@contextmanager
def named_workers(env: VecEnv, steps_taken: Callable[[], int]) -> Iterator[None]:
    """Turn a broken pipe into a ``WorkerError`` with the index of the ended worker while the context is active."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        if not isinstance(env, SubprocVecEnv):
            raise
        ended = wait([process.sentinel for process in env.processes], SECONDS_TO_END)
        for i, process in enumerate(env.processes):
            if process.sentinel in ended:
                process.join(SECONDS_TO_END)
                how = f"{how_it_ended(process.exitcode)} at step {steps_taken()}"
                advice = "SafeSubprocVecEnv takes the same arguments and reports the traceback of a worker that raises"
                raise WorkerError(i, f"{how}; {advice}") from error
        raise
