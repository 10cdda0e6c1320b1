"""What is known of a worker process: whether it has answered, and how it has ended."""

import select
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from sb3_ppo_variants.errors import WorkerError

# How long to wait for a process to end after its pipe has closed.
SECONDS_AFTER_CLOSING = 1.0


def waits_for(pipe: Connection, process: BaseProcess) -> Callable[[float | None], bool]:
    """Make a function that waits for an answer of a worker, with an optional limit in seconds.

    The function returns whether there is an answer. It raises an ``EOFError`` if the process ends without having sent
    anything: other workers may keep the pipe open.
    """
    if not hasattr(select, "poll"):
        return pipe.poll
    # Register once, because multiprocessing creates a new poll object for each call.
    poll, number = select.poll(), pipe.fileno()
    poll.register(number, select.POLLIN)
    poll.register(process.sentinel, select.POLLIN)

    def has_answered(seconds: float | None) -> bool:
        ready = poll.poll(None if seconds is None else 1000 * seconds)
        if len(ready) == 1 and ready[0][0] != number:
            raise EOFError
        return bool(ready)

    return has_answered


def ended_worker(processes: Sequence[BaseProcess], advice: str = "") -> WorkerError:
    """Make the error that names the first worker that has ended, and says how.

    :param processes: the process of each environment
    :param advice: the end of the message
    """
    sentinels = [process.sentinel for process in processes]
    ended = wait(sentinels, SECONDS_AFTER_CLOSING)
    index = next((i for i, sentinel in enumerate(sentinels) if sentinel in ended), 0)
    return WorkerError(index, how_it_ended(processes[index]) + advice)


def how_it_ended(process: BaseProcess) -> str:
    """Say how a process has ended that has closed its pipe."""
    process.join(SECONDS_AFTER_CLOSING)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
