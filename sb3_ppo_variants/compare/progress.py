"""Shows the progress of the runs: a bar for all of them, and a row for each one in progress."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sb3_ppo_variants.compare.plan import RANDOM, Run
from sb3_ppo_variants.compare.records import Record


class Display(Progress):
    """A line for each run that has ended and, in a terminal, a live display.

    :param runs: all runs of the plan
    :param missing: the runs that are not finished
    :param states: folder with the progress of these runs
    """

    def __init__(self, runs: Iterable[Run], missing: Iterable[Run], states: Path):
        self._steps = {run.name: run.timesteps if run.algorithm else 0 for run in runs}
        self._done = self._steps.keys() - {run.name for run in missing}
        self._failed = 0
        self._states = states
        console = Console()
        super().__init__(
            TextColumn("{task.description}"), BarColumn(None), "{task.percentage:3.0f}%",
            TextColumn("elapsed"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal, refresh_per_second=2,
        )  # fmt: skip
        self.add_task("", total=max(1, sum(self._steps.values())), completed=self._finished_steps())

    def ended(self, record: Record) -> None:
        """Report a run that finished or failed."""
        failed = record["status"] == "failed"
        self._done.add(record["name"])
        self._failed += failed
        what = "failed: " + record["error"].strip().splitlines()[-1] if failed else f"score {record['score']}"
        counted = f"{len(self._done)}/{len(self._steps)}"
        self.tell(f"{counted} {record['label']}, {record['env']}, seed {record['seed']}: {what}", red=failed)

    def tell(self, text: str, red: bool) -> None:
        """Print a line, in red if it needs the user's attention."""
        self.console.print(text, style="red" if red else None, highlight=False, markup=False, soft_wrap=True)

    def _finished_steps(self) -> int:
        return sum(steps for name, steps in self._steps.items() if name in self._done)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield a table with a row for each run in progress, and the bar."""
        states = running(self._states)
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


def running(folder: Path) -> list[dict[str, Any]]:
    """Return what the runs in progress last wrote about themselves."""
    states = []
    for file in sorted(folder.glob("*.json")):
        # The file is removed when its run ends.
        with suppress(FileNotFoundError):
            states.append(json.loads(file.read_text()))
    return states
