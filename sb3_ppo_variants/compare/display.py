"""Shows how far a comparison is, and estimates how long the rest of it takes."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.compare.records import RANDOM, Record
from sb3_ppo_variants.compare.report import read_states


class Estimate:
    """Estimates the time to the end from the wall-clock times of the runs that have finished since the command began.

    Runs that finished earlier do not count: they may be those of another machine, or of another number of jobs.

    :param missing: the runs to make
    :param jobs: how many of them are in progress at a time
    """

    def __init__(self, missing: Iterable[Run], jobs: int):
        # The random policy takes hardly any time.
        self._left = {run.name: run for run in missing if run.algorithm}
        self._jobs = jobs
        # The seconds that each step of a finished run took, with the setting and the environment of the run.
        self._known: list[tuple[str, str, float]] = []

    def note(self, record: Record) -> None:
        """Note that a run has ended. Only the time of one that finished says how long others take."""
        run = self._left.pop(record["name"], None)
        seconds = record["wall_seconds"]
        if run is not None and seconds is not None and record["status"] == "finished":
            self._known.append((run.label, run.env, seconds / run.timesteps))

    def seconds(self, steps: Mapping[str, int]) -> float | None:
        """Return the seconds to the end, or ``None`` before any run has finished.

        The rest is as fast as if it were spread evenly over the jobs, or takes as long as its longest run.

        :param steps: the steps that runs in progress have done, by name
        """
        if not self._known:
            return None
        rest = [
            max(run.timesteps - steps.get(name, 0), 0) * self._seconds_per_step(run) for name, run in self._left.items()
        ]
        return max(sum(rest) / self._jobs, max(rest, default=0.0))

    def _seconds_per_step(self, run: Run) -> float:
        """Return the mean over the runs of the setting in the environment; if there are none, over more of them."""
        same_env = [known for known in self._known if known[1] == run.env]
        alike = [known for known in same_env if known[0] == run.label] or same_env or self._known
        return sum(seconds for *_, seconds in alike) / len(alike)


def duration(seconds: float) -> str:
    """Write a duration with one or two units, rounded up."""
    minutes = math.ceil(seconds / 60)
    if minutes < 2:
        return f"{math.ceil(seconds)} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"


class Display(Progress):
    """A line for each run that has ended and, in a terminal, a bar for all of them and a row for each in progress."""

    def __init__(self, runs: Iterable[Run], missing: Collection[Run], states: Path, jobs: int):
        self._steps = {run.name: run.timesteps if run.algorithm else 0 for run in runs}
        self._done = self._steps.keys() - {run.name for run in missing}
        self._failed = 0
        self._states = states
        self._estimate = Estimate(missing, jobs)
        console = Console()
        super().__init__(
            TextColumn("{task.description}"), BarColumn(None), "{task.percentage:3.0f}%",
            TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal, refresh_per_second=2,
        )  # fmt: skip
        self.add_task("", total=max(1, sum(self._steps.values())), completed=self._finished_steps())

    def report(self, record: Record) -> None:
        """Report a run that finished or failed, and how long the others take."""
        failed = record["status"] == "failed"
        self._done.add(record["name"])
        self._failed += failed
        self._estimate.note(record)
        what = "failed: " + record["error"].strip().splitlines()[-1] if failed else f"score {record['score']}"
        counted = f"{len(self._done)}/{len(self._steps)}"
        left = self._estimate.seconds({name: state["steps"] for name, state in read_states(self._states).items()})
        rest = f"; about {duration(left)} left" if left else ""
        self.tell(f"{counted} {record['label']}, {record['env']}, seed {record['seed']}: {what}{rest}", red=failed)

    def tell(self, text: str, red: bool) -> None:
        """Print a line, in red if it needs the user's attention."""
        self.console.print(text, style="red" if red else None, highlight=False, markup=False, soft_wrap=True)

    def _finished_steps(self) -> int:
        return sum(steps for name, steps in self._steps.items() if name in self._done)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield a table with a row for each run in progress, and the bar."""
        states = read_states(self._states).values()
        failed = f", {self._failed} failed" if self._failed else ""
        steps = self._finished_steps() + sum(state["steps"] for state in states if state["label"] != RANDOM)
        for task in self.tasks:
            self.update(task.id, description=f"runs {len(self._done)}/{len(self._steps)}{failed}", completed=steps)
        table = Table("running", "environment", "seed", "steps", "reward so far", box=None)
        for state in states:
            reward = "" if state["reward"] is None else f"{state['reward']:g}"
            share = f"{state['steps']} of {state['timesteps']}"
            table.add_row(state["label"], state["env"], str(state["seed"]), share, reward)
        yield table
        yield self.make_tasks_table(self.tasks)
