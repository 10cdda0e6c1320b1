"""Sends what runs log to TensorBoard and Weights & Biases, besides recording it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from sb3_ppo_variants.compare.plan import Run
from sb3_ppo_variants.errors import installation

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run as WandbRun


@dataclass(frozen=True)
class Tracking:
    """Where runs log to.

    :param tensorboard: folder in which each run gets its own folder for TensorBoard; ``None`` writes none
    :param wandb: project at Weights & Biases; ``None`` does not log there
    :param wandb_folder: folder for the files of wandb
    """

    tensorboard: Path | None = None
    wandb: str | None = None
    wandb_folder: Path = Path()

    def check(self) -> None:
        """Exit, naming the extra to install, if a package is missing."""
        if self.tensorboard is not None and find_spec("tensorboard") is None:
            raise SystemExit(f"--tensorboard needs TensorBoard: {installation('examples')}")
        if self.wandb is not None and find_spec("wandb") is None:
            raise SystemExit(f"--wandb needs Weights & Biases: {installation('wandb')}")

    @contextmanager
    def logger(self, run: Run) -> Iterator[Logger | None]:
        """Yield the logger for a run's model, or ``None`` to leave the model's own logger."""
        formats: list[KVWriter] = []
        if self.tensorboard is not None:
            folder = self.tensorboard / run.name
            # An earlier attempt at this run, which failed or was killed, may have left logs here.
            shutil.rmtree(folder, ignore_errors=True)
            formats.append(TensorBoardOutputFormat(str(folder)))
        try:
            if self.wandb is None:
                yield Logger(str(self.tensorboard), formats) if formats else None
            else:
                with self._tracked(run, self.wandb) as tracked:
                    yield Logger(str(self.wandb_folder), [*formats, ToWandb(tracked)])
        finally:
            for each in formats:
                each.close()

    @contextmanager
    def _tracked(self, run: Run, project: str) -> Iterator["WandbRun"]:
        """Start a run of Weights & Biases, which is marked as failed if an error is raised within the context."""
        import wandb

        self.wandb_folder.mkdir(parents=True, exist_ok=True)
        described = run.identity
        with wandb.init(
            project=project, dir=self.wandb_folder, name=f"{run.label}, {run.env}, seed {run.seed}",
            group=f"{run.label}, {run.env}", config={**described.pop("hyperparameters"), **described},
            settings=wandb.Settings(silent=True, console="off"),
        ) as tracked:  # fmt: skip
            yield tracked


class ToWandb(KVWriter):
    """Writes numbers from SB3's logger to a run of Weights & Biases."""

    def __init__(self, run: "WandbRun"):
        self._run = run

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write the numbers that were logged at a step."""
        self._run.log({name: value for name, value in key_values.items() if isinstance(value, Real)}, step=step)

    def close(self) -> None:
        """Do nothing: the context that started the run ends it."""
