"""The report of a comparison, made from its records alone."""

import base64
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from sb3_ppo_variants.compare import (
    curve_plots,
    humans,
    parameters,
    scores,
    statistics,
    study,
    tables,
)
from sb3_ppo_variants.compare.curves import LAST
from sb3_ppo_variants.compare.interactive import document, page
from sb3_ppo_variants.compare.markdown import escaped
from sb3_ppo_variants.compare.records import Record, digest, is_spanned
from sb3_ppo_variants.compare.scored import PICTURES, Scored, file_of, image, without
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.study import STUDY
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.atomic import write_atomically

INTERACTIVE = "interactive.html"
ACROSS = """\
Mean return of the last 100 episodes over seeds, ± standard deviation, and the number of seeds: under the protocols, and
under `released-code` with one ingredient changed."""
FINAL = f"""\
Mean return of the last {LAST} episodes of a run, or of all if there were fewer: mean over seeds ± standard deviation,
and the number of seeds."""
HUMAN = """\
In Atari games, with 0 for the random policy and 1 for the human tester of
[Wang et al. 2016](https://arxiv.org/abs/1511.06581): means over seeds."""
GAMES = "Over all games, with 95% intervals, the mean: {}. Only seeds with a run in every game count."
CURVES = f"""\
Mean over seeds with 95% intervals, or with fewer than four seeds, a thin line for each. A point is the mean return of
the {LAST} episodes that ended last, or of all if there were fewer, so that a curve ends at the score. At first, these
are the episodes that ended early."""
SPANNED = """\
Mean over seeds with 95% intervals, or with fewer than four seeds, a thin line for each. These records of an earlier
version contain no episodes: a point is the mean return of those that ended in five hundredths of the steps, and a curve
may not end at the score."""
TRAINING = "What the updates logged, means over seeds."
STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left; white-space: nowrap }
img { max-width: 100% } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto } summary { cursor: pointer }
"""


def write(
    records: Iterable[Record], problems: list[str], running: int, folder: Path, baseline: str | None = None
) -> list[Path]:
    """Write ``report.md``, ``report.html`` with embedded pictures, ``interactive.html`` and ``scores.csv``.

    :param problems: lines about records that cannot be used
    :param running: number of runs in progress
    :param baseline: label of the setting that the others are compared with; ``None`` takes SB3's PPO, if it is included
    :return: paths of the files
    :raises ArgumentError: if no setting has this label
    """
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    compared = scores.comparisons(records)
    _check_baseline(baseline, compared)
    blocks, frames = ["# Comparison"], []
    if running:
        now = "1 run is being made now, and is" if running == 1 else f"{running} runs are being made now, and are"
        blocks.append(f"{now} not in this report.")
    if problems:
        blocks.append("\n".join(f"- {problem}" for problem in problems))
    blocks += _study(compared, pictures)
    for comparison in compared:
        frame = scores.table(comparison)
        frames.append(frame.assign(comparison=comparison.name))
        blocks += section(comparison, frame, pictures, baseline)
    if not frames:
        blocks.append("There are no records yet.")
    text = "\n\n".join(blocks) + "\n"
    files = [folder / name for name in ("report.md", "report.html", INTERACTIVE, "scores.csv")]
    csv = pd.concat(frames).to_csv(index=False) if frames else ""
    for file, content in zip(files, (text, html(text, folder), page(compared), csv), strict=True):
        write_atomically(file, content.encode())
    return files


def _study(compared: list[Comparison], pictures: Path) -> list[str]:
    """Return the section on the study of Table 1, which is empty unless it has runs under several of its conditions."""
    found = study.outcomes(compared)
    if len(found) < 2:
        return []
    file = pictures / f"{STUDY}.png"
    study.draw(found, file)
    return [
        "## What Table 1 depends on",
        study.counted(found),
        study.overview(found),
        study.explained(found),
        image("Scores under each of the conditions", file),
        study.PICTURED,
        ACROSS,
        *tables.across([outcome.comparison for outcome in found]),
    ]


def _check_baseline(baseline: str | None, compared: list[Comparison]) -> None:
    labels = {label for comparison in compared for label in comparison.labels}
    if baseline is not None and baseline not in labels:
        raise ArgumentError(f"--baseline {baseline!r} is not one of the recorded settings: {', '.join(sorted(labels))}")


def section(comparison: Comparison, frame: pd.DataFrame, pictures: Path, baseline: str | None = None) -> list[str]:
    """Return the section on a comparison as blocks of Markdown, and draw its pictures into a folder.

    :param frame: the scores of the comparison, as ``scores.table`` returns them
    """
    blocks = [f"## {comparison.title} ({comparison.name})"]
    scored = Scored.of(comparison, frame)
    if not frame.empty:
        blocks += scored.overview()
    blocks += [tables.summary(comparison.own), *tables.added(comparison)]
    if not frame.empty:
        blocks += scored.section(pictures, baseline)
        blocks += _human(frame)
        blocks += ["### Final scores", FINAL, tables.final_scores(comparison, frame)]
        blocks += ["### Learning curves", *_curves(comparison, pictures)]
        training = file_of(comparison, "training", pictures)
        if curve_plots.training(comparison, training):
            blocks += ["### Training", TRAINING, image("What the updates logged", training)]
        blocks += [*_parameters(comparison.own), "### Speed", tables.speed(frame)]
    if comparison.failed:
        blocks += ["### Failed runs", *tables.failures(comparison.failed)]
    return blocks


def _parameters(own: Comparison) -> list[str]:
    """Return the sections on hyperparameters and the command, which are empty while there are only added runs."""
    if not own.records:
        return []
    blocks = ["### Hyperparameters", *parameters.blocks(own)]
    command = parameters.command(own)
    return blocks if command is None else [*blocks, "### Command", f"```sh\n{command}\n```"]


def _human(frame: pd.DataFrame) -> list[str]:
    """Return the section on human-normalised scores, which is empty if there are no Atari games."""
    games = humans.normalised(frame)
    if games.empty:
        return []
    found, incomplete = scores.matrices(games)
    blocks = ["### Human-normalised scores", HUMAN, tables.shares_of_humans(games), *without(incomplete)]
    if games["env"].nunique() > 1 and found:
        means = statistics.means({label: matrix.to_numpy() for label, matrix in found.items()})
        blocks.append(GAMES.format(", ".join(f"{escaped(label)} {mean}" for label, mean in means.items())))
    return blocks


def _file_names(envs: Iterable[str]) -> dict[str, str]:
    """Return a part of a file's name for each environment. Ids that differ only in other characters get a digest."""
    readable = {env: re.sub(r"[^A-Za-z0-9_-]", "_", env) for env in envs}
    counts = Counter(readable.values())
    return {env: name if counts[name] == 1 else f"{name}-{digest(env)[:6]}" for env, name in readable.items()}


def _curves(comparison: Comparison, pictures: Path) -> list[str]:
    spanned = any(is_spanned(record) for record in comparison.records)
    blocks = [SPANNED if spanned else CURVES, f"[Interactive version]({INTERACTIVE})."]
    for env, name in _file_names(comparison.envs).items():
        file = file_of(comparison, name, pictures)
        curve_plots.curves(comparison, env, file)
        blocks.append(image(f"Learning curves in {env}", file))
    return blocks


def html(text: str, folder: Path) -> str:
    """Convert the report from Markdown to a single HTML page, with its pictures, from the folder, embedded."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def inside(found: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((folder / found[1]).read_bytes()).decode()}"'

    body = re.sub(rf'src="({PICTURES}/[^"]+)"', inside, body)
    # Only these tags are restored. All others are shown as text, whatever the records contain.
    body = re.sub(
        r"<p>&lt;details&gt;&lt;summary&gt;([^<]*)&lt;/summary&gt;</p>", r"<details><summary>\1</summary>", body
    )
    body = body.replace("<p>&lt;/details&gt;</p>", "</details>")
    return document("Comparison", STYLE, body)
