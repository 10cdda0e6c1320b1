"""Write a report of the runs recorded so far: report.md, report.html, scores.csv and scores.tex."""

import argparse
import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout
from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt

from sb3_ppo_variants.compare import plots, records, scores, statistics, tables
from sb3_ppo_variants.compare.added import read_beside
from sb3_ppo_variants.compare.options import OUT
from sb3_ppo_variants.compare.records import Record
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.settings import split
from sb3_ppo_variants.compare.tables import escape_markdown, join_labels, markdown, say_count
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.atomic import write_atomically
from sb3_ppo_variants.saving.plain import Values

# Subfolders: the records of finished and failed runs, the progress of the others, and the pictures of the report.
RECORDS, RUNNING, PICTURES = "records", "running", "pictures"
# A file in the same folder, which the command that makes runs keeps locked.
LOCK = ".lock"
PACKED = ".jsonl.gz"
TEMPLATE = Path(__file__).with_suffix(".md.j2")
UNTESTED = "No setting has a seed with normalised scores in every environment, so nothing is tested."
PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Comparison</title>
<style>
body { font: 15px/1.5 sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left; white-space: nowrap }
img { max-width: 100% } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto } summary { cursor: pointer }
</style>
"""


def run(options: argparse.Namespace) -> int:
    """Write the report of the existing records."""
    out: Path = options.out or OUT
    if options.files and options.out is None:
        raise ArgumentError("--from needs --out, the folder for its report")
    if not options.files and not (out / RECORDS).is_dir():
        raise ArgumentError(f"--out {out} has no records: create some with compare, or pass the folder that has them")
    if options.files and (out / RECORDS).is_dir():
        raise ArgumentError(
            f"--out {out} has records of its own, which a report of --from would leave out: pass another folder, or "
            "copy the runs to this one with compare --from"
        )
    found, problems = records.load_records(None if options.files else out / RECORDS, options.files or ())
    write_report(out, found, problems, options.export, options.baseline, options.add)
    return 0


def write_report(
    out: Path,
    found: Sequence[Record],
    problems: Sequence[str],
    export: Path | None = None,
    baseline: str | None = None,
    add: Sequence[str] = (),
) -> None:
    """Write the files of a report.

    :param problems: lines about records that cannot be used
    :param export: file to pack the records into
    :param baseline: the setting that the others are compared with, as in the report or on the command line; ``None``
        takes SB3's PPO, if it is included
    :param add: runs that were recorded elsewhere, as ``LABEL=PATH``
    """
    if export is not None and not export.name.endswith(PACKED):
        raise ArgumentError(f"--export {export} needs a name that ends in {PACKED}, because the file is compressed")
    try:
        if export is not None:
            records.pack(found, export)
    except OSError as error:
        raise SystemExit(f"--export {export} could not be written: {error.strerror or error}") from error
    try:
        if not found and (add or baseline is not None):
            raise ArgumentError("--add and --baseline need records, and there are none yet")
        compared = scores.comparisons([*found, *read_beside(add, found)])
        baseline = baseline and _find_baseline(baseline, {label for each in compared for label in each.labels})
        (out / PICTURES).mkdir(parents=True, exist_ok=True)
        text = render(compared, problems, out, baseline)
        frames = [each.table.assign(comparison=each.name) for each in compared]
        contents = {
            out / "report.md": text,
            out / "report.html": to_html(text, out),
            out / "scores.csv": pd.concat(frames).to_csv(index=False) if frames else "",
            out / "scores.tex": "\n".join(map(tables.to_latex, compared)),
        }
        for file, content in contents.items():
            write_atomically(file, content.encode())
    except OSError as error:
        raise SystemExit(f"the report could not be written to --out {out}: {error}") from error
    print(f"Report: {', '.join(map(str, contents))}")
    if export is not None:
        print(f"Records: {export}")


def _find_baseline(given: str, labels: set[str]) -> str:
    for label in (given, split(given).label):
        if label in labels:
            return label
    raise ArgumentError(f"--baseline {given!r} is not one of the recorded settings: {', '.join(sorted(labels))}")


def render(compared: Sequence[Comparison], problems: Sequence[str], out: Path, baseline: str | None) -> str:
    """Make the report in Markdown, and draw its pictures."""
    environment = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        running=_count_running(out),
        problems=problems,
        sections=[describe_comparison(comparison, out / PICTURES, baseline) for comparison in compared],
        alpha=statistics.ALPHA,
        margin=statistics.MARGIN,
        last=records.LAST,
    )


def describe_comparison(comparison: Comparison, pictures: Path, baseline: str | None) -> Values:
    """Make everything that the report says about a comparison, as texts by name, and draw its pictures.

    :param pictures: folder for the pictures
    :param baseline: label of the setting that the others are compared with; ``None`` takes SB3's PPO
    """
    known = not comparison.table.empty
    said: dict[str, Any] = dict.fromkeys(("overview", "verdict", "doubts", "warning", "arrays", "shared"))
    said |= {
        "title": f"{comparison.title} ({comparison.name})",
        "summary": tables.summarize(comparison.own),
        "added": ", ".join(
            f"{escape_markdown(label)} ({say_count(comparison.runs(label), 'run')})" for label in comparison.added
        ),
        "failures": tables.failures(comparison.failed),
    }
    if not known:
        return said
    arrays, against = comparison.arrays, baseline or comparison.baseline
    said |= {"overview": tables.overview(comparison, against), "verdict": UNTESTED, "arrays": bool(arrays)}
    if arrays:
        few = tables.too_few(
            [len(own) for own in comparison.tested.values()], len(scores.scaled_envs(comparison.table))
        )
        said["verdict"] = tables.verdict(comparison.ranking, few, bool(comparison.incomplete), comparison.doubts)
        said |= {"doubts": bool(comparison.doubts), "warning": tables.warn_of_scale(comparison)}
    compared = tables.against(comparison, against)
    said |= {
        "not_scaling": tables.name_not_scaling(comparison),
        "without_scale": ", ".join(comparison.without_scale),
        "incomplete": join_labels(comparison.incomplete) if scores.scaled_envs(comparison.table) else "",
        "against": markdown(compared) if len(compared) else "",
        "baseline": f"{escape_markdown(against)} ({say_count(arrays.get(against, ()), 'seed')})",
        "without_baseline": baseline and baseline not in arrays and escape_markdown(baseline),
        "scores": markdown(tables.score_cells(comparison)),
        "speed": tables.speed(comparison.table),
        "human": "",
        "human_means": "",
        "human_incomplete": "",
    }
    said |= tables.compare_with_humans(comparison) | _draw_all(comparison, pictures)
    return said | (tables.hyperparameters(comparison.own) if comparison.own.records else {})


def _draw_all(comparison: Comparison, pictures: Path) -> dict[str, Any]:
    """Draw the pictures of a comparison, and return their Markdown by name."""

    def draw(text: str, name: str, function: Callable[..., None], *arguments: object) -> str:
        file = pictures / f"{comparison.name}-{name}.png"
        function(*arguments, file)
        return f"![{text}]({PICTURES}/{file.name})"

    arrays, labels = comparison.arrays, comparison.labels
    drawn: dict[str, Any] = {"curves": [], "efficiency": "", "training": ""}
    if arrays:
        drawn["aggregates"] = draw("Mean normalised scores", "aggregates", plots.draw_aggregates, arrays, labels)
        drawn["profiles"] = draw("Performance profiles", "profiles", plots.draw_profiles, arrays, labels)
        shares, curves = scores.normalised_curves(comparison)
        if len(shares):
            of_curves = (comparison, shares, curves)
            drawn["efficiency"] = draw("Sample efficiency", "efficiency", plots.draw_efficiency, *of_curves)
    # Ids that differ only in characters that file names cannot have get a digest.
    names = {env: re.sub(r"[^A-Za-z0-9_-]", "_", env) for env in comparison.envs}
    counts = Counter(names.values())
    for env, name in names.items():
        unique = name if counts[name] == 1 else f"{name}-{records.digest(env)[:6]}"
        drawn["curves"].append(draw(f"Learning curves in {env}", unique, plots.draw_environment, comparison, env))
    if plots.list_quantities(comparison):
        drawn["training"] = draw("What the updates logged", "training", plots.draw_training, comparison)
    return drawn


def read_states(folder: Path) -> dict[str, Values]:
    """Read what the runs in progress last wrote about themselves, by the name of the run."""
    states = {}
    for file in sorted(folder.glob("*.json")):
        # The file is removed when its run ends.
        with suppress(FileNotFoundError):
            states[file.stem] = json.loads(file.read_text())
    return states


def _count_running(out: Path) -> int:
    """Count the runs in progress. Files that a killed command left over do not count."""
    if not (out / LOCK).exists():
        return 0
    try:
        with FileLock(out / LOCK, timeout=0):
            return 0
    except Timeout:
        return len(read_states(out / RUNNING))


def to_html(text: str, folder: Path) -> str:
    """Convert the report from Markdown to a single HTML page, with its pictures, from the folder, embedded."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def embed(found: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((folder / found[1]).read_bytes()).decode()}"'

    body = re.sub(rf'src="({PICTURES}/[^"]+)"', embed, body)
    # Only these tags are restored. All others are shown as text, whatever the records contain.
    opened = r"<p>&lt;details&gt;&lt;summary&gt;([^<]*)&lt;/summary&gt;</p>"
    body = re.sub(opened, r"<details><summary>\1</summary>", body).replace("<p>&lt;/details&gt;</p>", "</details>")
    return f"{PAGE}{body}"
