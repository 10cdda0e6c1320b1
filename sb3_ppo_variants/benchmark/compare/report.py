"""The report of a comparison, from records alone."""

import base64
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from sb3_ppo_variants.benchmark.compare import paper, plots, scores, statistics, tables
from sb3_ppo_variants.benchmark.compare.execution import LAST
from sb3_ppo_variants.benchmark.compare.records import Record
from sb3_ppo_variants.benchmark.compare.scores import Comparison
from sb3_ppo_variants.benchmark.compare.settings import BASELINE
from sb3_ppo_variants.benchmark.compare.summary import count, summary
from sb3_ppo_variants.saving.atomic import write_atomically

PICTURES = "pictures"
PAPER = "paper-table1"
STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left }
img { max-width: 100% } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto }
"""


def write(records: Iterable[Record], problems: list[str], running: int, folder: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` with its pictures inside, and ``scores.csv``.

    :param records: records of runs
    :param problems: what to say of records that can not be used
    :param running: number of runs that are being made
    :param folder: where
    :return: the files
    """
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    found = scores.comparisons(records)
    lines = ["# Comparison", ""]
    if running:
        now = "1 run is being made now, and is" if running == 1 else f"{running} runs are being made now, and are"
        lines += [f"{now} not in this report.", ""]
    lines += [*(f"- {problem}" for problem in problems), ""] if problems else []
    frames = []
    for comparison in found:
        frame = scores.table(comparison)
        frames.append(frame.assign(comparison=comparison.name))
        lines += section(comparison, frame, pictures)
    if not found:
        lines += ["There are no records yet."]
    text = "\n".join(lines) + "\n"
    files = [folder / name for name in ("report.md", "report.html", "scores.csv")]
    csv = pd.concat(frames).to_csv(index=False) if frames else ""
    for file, content in zip(files, (text, html(text, folder), csv), strict=True):
        write_atomically(file, content.encode())
    return files


def section(comparison: Comparison, frame: pd.DataFrame, pictures: Path) -> list[str]:
    """What the records under the same conditions say.

    :param comparison: the records
    :param frame: their table
    :param pictures: folder for pictures
    :return: lines of Markdown
    """
    title = comparison.conditions["preset"] or ", ".join(comparison.envs) or "No finished run"
    lines = [f"## {title} ({comparison.name})", "", *summary(comparison), ""]
    if not frame.empty:
        lines += [
            "### Final scores",
            "",
            f"Mean return of the last {LAST} episodes of a run, or of all if there were fewer: mean over seeds ±",
        ]
        lines += ["standard deviation, and the number of seeds.", "", *tables.final_scores(comparison, frame)]
        lines += _normalised(comparison, frame, pictures)
        lines += ["### Learning curves", "", "Means over seeds with 95% bootstrap intervals.", ""]
        for env in comparison.envs:
            file = pictures / f"{comparison.name}-{re.sub(r'[^A-Za-z0-9_-]', '_', env)}.png"
            plots.curves(comparison, env, file)
            lines += _image(f"Learning curves in {env}", file)
        lines += ["### Speed", "", *tables.speed(frame)]
    if comparison.failed:
        lines += ["### Failed runs", "", *tables.failures(comparison.failed)]
    return lines


def _normalised(comparison: Comparison, frame: pd.DataFrame, pictures: Path) -> list[str]:
    lines = ["### Normalised scores", "", "Scores are shifted and scaled in each environment so that the random policy"]
    lines += [
        "(measured) has 0 and the best run of this comparison 1. Intervals are 95% stratified bootstrap intervals"
    ]
    lines += ["of rliable over seeds; with fewer than five seeds they are rough. Only seeds with a run in every"]
    lines += ["environment count.", ""]
    found, incomplete = scores.matrices(frame)
    if left_out := scores.unscaled(frame):
        lines += [
            f"Without {', '.join(left_out)}, where no run is better than the random policy, or it has no score.",
            "",
        ]
    if incomplete:
        lines += [f"Without such a seed: {', '.join(incomplete)}.", ""]
    if not found:
        return lines
    seeds = {label: len(matrix) for label, matrix in found.items()}
    arrays = {label: matrix.to_numpy() for label, matrix in found.items()}
    aggregates = statistics.aggregates(arrays)
    lines += tables.estimates(aggregates, seeds)
    compared = statistics.against(arrays, BASELINE)
    if compared:
        of = count(range(seeds[BASELINE]), "seed")
        lines += [f"Against {BASELINE} ({of}): the probability that a run is better, and the"]
        lines += ["difference of the interquartile means (above 0: better).", "", *tables.estimates(compared, seeds)]
    if comparison.conditions["preset"] == PAPER:
        means = {label: row["mean"] for label, row in aggregates.items()}
        lines += ["#### Beside the paper's Table 1", "", *paper.beside(means, incomplete), ""]
    bars, profile = (pictures / f"{comparison.name}-{name}.png" for name in ("aggregates", "profiles"))
    plots.aggregates(aggregates, comparison.labels, bars)
    plots.performance_profiles(statistics.profiles(arrays), comparison.labels, profile)
    return [*lines, *_image("Aggregates of normalised scores", bars), *_image("Performance profiles", profile)]


def _image(text: str, file: Path) -> list[str]:
    return [f"![{text}]({PICTURES}/{file.name})", ""]


def html(text: str, folder: Path) -> str:
    """The report as one page, with its pictures inside.

    :param text: the report in Markdown
    :param folder: where its pictures are
    """
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def inside(found: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((folder / found[1]).read_bytes()).decode()}"'

    body = re.sub(rf'src="({PICTURES}/[^"]+)"', inside, body)
    return f'<!doctype html>\n<meta charset="utf-8">\n<title>Comparison</title>\n<style>{STYLE}</style>\n{body}'
