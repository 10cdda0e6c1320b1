"""The report of a comparison, from records alone."""

import base64
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from sb3_ppo_variants.benchmark.compare import paper, plots, scores, statistics, tables
from sb3_ppo_variants.benchmark.compare.execution import LAST
from sb3_ppo_variants.benchmark.compare.records import Record
from sb3_ppo_variants.benchmark.compare.scores import Comparison
from sb3_ppo_variants.benchmark.compare.settings import BASELINE
from sb3_ppo_variants.saving.atomic import write_atomically

PICTURES = "pictures"
PAPER = "paper-table1"
FINAL = f"""\
Mean return of the last {LAST} episodes of a run, or of all if there were fewer: mean over seeds ± standard deviation,
and the number of seeds."""
NORMALISED = """\
Scores are shifted and scaled in each environment so that the random policy (measured) has 0 and the best run of this
comparison 1. Intervals are 95% stratified bootstrap intervals of rliable over seeds; with fewer than five seeds they
are rough. Only seeds with a run in every environment count."""
AGAINST = """\
the probability that a run is better, and the difference of the interquartile means (above 0: better)."""
STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left }
img { max-width: 100% } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto }
"""


def write(records: Iterable[Record], problems: list[str], running: int, folder: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` with its pictures inside, and ``scores.csv``, and return the files.

    :param problems: what to say of records that can not be used
    :param running: number of runs that are being made
    """
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    blocks, frames = ["# Comparison"], []
    if running:
        now = "1 run is being made now, and is" if running == 1 else f"{running} runs are being made now, and are"
        blocks.append(f"{now} not in this report.")
    if problems:
        blocks.append("\n".join(f"- {problem}" for problem in problems))
    for comparison in scores.comparisons(records):
        frame = scores.table(comparison)
        frames.append(frame.assign(comparison=comparison.name))
        blocks += section(comparison, frame, pictures)
    if not frames:
        blocks.append("There are no records yet.")
    text = "\n\n".join(blocks) + "\n"
    files = [folder / name for name in ("report.md", "report.html", "scores.csv")]
    csv = pd.concat(frames).to_csv(index=False) if frames else ""
    for file, content in zip(files, (text, html(text, folder), csv), strict=True):
        write_atomically(file, content.encode())
    return files


def section(comparison: Comparison, frame: pd.DataFrame, pictures: Path) -> list[str]:
    """What records under the same conditions, and their table, say: blocks of Markdown, and pictures in a folder."""
    blocks = [f"## {comparison.title} ({comparison.name})", tables.summary(comparison)]
    if not frame.empty:
        blocks += ["### Final scores", FINAL, tables.final_scores(comparison, frame)]
        blocks += ["### Normalised scores", NORMALISED, *_normalised(comparison, frame, pictures)]
        blocks += ["### Learning curves", "Means over seeds with 95% bootstrap intervals."]
        for env in comparison.envs:
            file = pictures / f"{comparison.name}-{re.sub(r'[^A-Za-z0-9_-]', '_', env)}.png"
            plots.curves(comparison, env, file)
            blocks.append(_image(f"Learning curves in {env}", file))
        blocks += ["### Speed", tables.speed(frame)]
    if comparison.failed:
        blocks += ["### Failed runs", *tables.failures(comparison.failed)]
    return blocks


def _normalised(comparison: Comparison, frame: pd.DataFrame, pictures: Path) -> list[str]:
    blocks = []
    found, incomplete = scores.matrices(frame)
    if left_out := scores.unscaled(frame):
        envs = ", ".join(left_out)
        blocks.append(f"Without {envs}, where no run is better than the random policy, or it has no score.")
    if incomplete:
        blocks.append(f"Without such a seed: {', '.join(incomplete)}.")
    if not found:
        return blocks
    seeds = {label: len(matrix) for label, matrix in found.items()}
    arrays = {label: matrix.to_numpy() for label, matrix in found.items()}
    aggregates = statistics.aggregates(arrays)
    blocks.append(tables.estimates(aggregates, seeds))
    if compared := statistics.against(arrays, BASELINE):
        of = tables.count(range(seeds[BASELINE]), "seed")
        blocks += [f"Against {BASELINE} ({of}): {AGAINST}", tables.estimates(compared, seeds)]
    if comparison.conditions["preset"] == PAPER:
        means = {label: row["mean"] for label, row in aggregates.items()}
        blocks += ["#### Beside the paper's Table 1", *paper.beside(means, incomplete)]
    bars, profiles = (pictures / f"{comparison.name}-{name}.png" for name in ("aggregates", "profiles"))
    plots.aggregates(aggregates, comparison.labels, bars)
    plots.performance_profiles(statistics.profiles(arrays), comparison.labels, profiles)
    return [*blocks, _image("Aggregates of normalised scores", bars), _image("Performance profiles", profiles)]


def _image(text: str, file: Path) -> str:
    return f"![{text}]({PICTURES}/{file.name})"


def html(text: str, folder: Path) -> str:
    """The report, in Markdown, as one page with its pictures, of this folder, inside."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def inside(found: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((folder / found[1]).read_bytes()).decode()}"'

    body = re.sub(rf'src="({PICTURES}/[^"]+)"', inside, body)
    return f'<!doctype html>\n<meta charset="utf-8">\n<title>Comparison</title>\n<style>{STYLE}</style>\n{body}'
