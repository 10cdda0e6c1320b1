"""Write a report of the runs recorded so far: report.md, report.html, interactive.html and scores.csv."""

import argparse
import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout
from markdown_it import MarkdownIt

from sb3_ppo_variants.compare import agreement, appendix, plots, records, scores, statistics, study, tables
from sb3_ppo_variants.compare.added import read_beside
from sb3_ppo_variants.compare.options import OUT
from sb3_ppo_variants.compare.paper import TABLE_1
from sb3_ppo_variants.compare.records import LAST, Record
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.settings import split
from sb3_ppo_variants.compare.statistics import MARGIN
from sb3_ppo_variants.compare.tables import escape_markdown, say_count
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.atomic import write_atomically
from sb3_ppo_variants.saving.plain import Values

# Subfolders: the records of finished and failed runs, the progress of the others, the pictures of the report, and its
# version for a paper.
RECORDS, RUNNING, PICTURES, APPENDIX = "records", "running", "pictures", "appendix"
# A file in the same folder, which the command that makes runs keeps locked.
LOCK = ".lock"
INTERACTIVE = "interactive.html"
PACKED = ".jsonl.gz"
OVERVIEW = """\
Settings are in order of their mean normalised score. `better than` and `worse than` count the settings from which one
differs beyond noise. The KL is KL(old || new) after an update, averaged over each hundredth of a run: the median, and
the range of the middle 80%. SB3 logs an estimate of it."""
NORMALISED = """\
Scores are shifted and scaled in each environment so that the random policy (measured) has 0 and the best run of this
comparison 1. Only seeds with a run in every environment count. Intervals are 95% t intervals over seeds, widened for
skewed scores; each is about one number, without a correction for how many there are. With fewer than four seeds in one
environment, or three in two, there are none."""
UNTESTED = "No setting has a seed with normalised scores in every environment, so nothing is tested."
NOT_SCALING = """\
{who} do not set this scale where others beat the random policy, so that their scores may be above 1."""
AGAINST_BASELINE = f"""\
the probability that a run is better, the difference of the means (above 0: better), the p value of that difference,
corrected as above, and whether the two are equivalent: two one-sided t tests at 5% show that the means differ by less
than {MARGIN}. Where settings neither differ nor are equivalent, these runs cannot tell."""
AGGREGATES = "Lines are means, circles seeds (means over environments), and bars 95% intervals."
EFFICIENCY = "The mean of the normalised curves over all environments, by steps and by time."
FIGURED = """\
Lines as in the learning curves below. A mark at the right is the paper's value."""
ORDERS = "Each square compares two settings that differ in the paper."
ACROSS = """\
Mean return of the last 100 episodes over seeds, ± standard deviation, and the number of seeds: under the protocols, and
under `released-code` with one ingredient changed."""
FINAL_SCORES = f"""\
Mean return of the last {LAST} episodes of a run, or of all if there were fewer: mean over seeds ± standard deviation,
and the number of seeds."""
HUMAN = """\
In Atari games, with 0 for the random policy and 1 for the human tester of
[Wang et al. 2016](https://arxiv.org/abs/1511.06581): means over seeds."""
GAMES = "Over all games, with 95% intervals, the mean: {}. Only seeds with a run in every game count."
LEARNING_CURVES = f"""\
Mean over seeds with 95% intervals, or with fewer than four seeds, a thin line for each. A point is the mean return of
the {LAST} episodes that ended last, or of all if there were fewer, so that a curve ends at the score. At first, these
are the episodes that ended early."""
TRAINING = "What the updates logged, means over seeds."
REPORT_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left; white-space: nowrap }
img { max-width: 100% } pre { background: #f4f4f4; padding: .6rem; overflow-x: auto } summary { cursor: pointer }
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
    write(out, found, problems, options.export, options.baseline, options.add, options.appendix)
    return 0


def write(
    out: Path,
    found: Sequence[Record],
    problems: Sequence[str],
    export: Path | None = None,
    baseline: str | None = None,
    add: Sequence[str] = (),
    with_appendix: bool = False,
) -> None:
    """Write the files of a report.

    :param problems: lines about records that cannot be used
    :param export: file to pack the records into
    :param baseline: the setting that the others are compared with, as in the report or on the command line; ``None``
        takes SB3's PPO, if it is included
    :param add: runs that were recorded elsewhere, as ``LABEL=PATH``
    :param with_appendix: write the folder ``appendix`` too
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
        labels = {label for comparison in compared for label in comparison.labels}
        if baseline is not None and baseline not in labels:
            given, baseline = baseline, split(baseline).label
            if baseline not in labels:
                known = ", ".join(sorted(labels))
                raise ArgumentError(f"--baseline {given!r} is not one of the recorded settings: {known}")
        (out / PICTURES).mkdir(parents=True, exist_ok=True)
        text, csv = _make(compared, problems, out, baseline)
        contents = {out / "report.md": text, out / "report.html": html(text, out)}
        contents |= {out / INTERACTIVE: plots.page(compared), out / "scores.csv": csv}
        contents |= appendix.make_appendix(out / APPENDIX, compared, baseline) if with_appendix else {}
        for file, content in contents.items():
            write_atomically(file, content.encode())
    except OSError as error:
        raise SystemExit(f"the report could not be written to --out {out}: {error}") from error
    print(f"Report: {', '.join(map(str, contents))}")
    if export is not None:
        print(f"Records: {export}")


def _make(compared: Sequence[Comparison], problems: Sequence[str], out: Path, baseline: str | None) -> tuple[str, str]:
    """Make the report in Markdown and the table of scores as CSV, and draw the pictures."""
    blocks, frames = ["# Comparison"], []
    if running := _count_running(out):
        now = "1 run is being made now, and is" if running == 1 else f"{running} runs are being made now, and are"
        blocks.append(f"{now} not in this report.")
    if problems:
        blocks.append("\n".join(f"- {problem}" for problem in problems))
    outcomes = study.outcomes(compared)
    # A study has runs under several of its conditions.
    if len(outcomes) > 1:
        file = out / PICTURES / f"{study.STUDY}.png"
        picture = image("Scores under each of the conditions", file, study.draw_study, outcomes)
        blocks += ["## What Table 1 depends on", study.progress(outcomes), *study.tabulate(outcomes), picture]
        blocks += [study.PICTURED, ACROSS, *tables.across([outcome.comparison for outcome in outcomes])]
    for comparison in compared:
        frames.append(comparison.table.assign(comparison=comparison.name))
        blocks += Section(comparison, out / PICTURES, baseline).blocks()
    if not frames:
        blocks.append("There are no records yet.")
    return "\n\n".join(blocks) + "\n", pd.concat(frames).to_csv(index=False) if frames else ""


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


@dataclass(frozen=True)
class Section:
    """The section on a comparison, as blocks of Markdown, with its pictures.

    :param pictures: folder for the pictures
    :param baseline: label of the setting that the others are compared with, if the command names one
    """

    comparison: Comparison
    pictures: Path
    baseline: str | None

    def blocks(self) -> list[str]:
        """Write the section, and draw its pictures."""
        comparison = self.comparison
        title = f"## {comparison.title} ({comparison.name})"
        summary = [tables.summarize(comparison.own), *tables.mention_added(comparison)]
        failed = ["### Failed runs", *tables.failures(comparison.failed)] if comparison.failed else []
        if comparison.table.empty:
            return [title, *summary, *failed]
        compared = [*self._overview(), *summary, *self._normalised(), *self._human()]
        final = ["### Final scores", FINAL_SCORES, tables.markdown(tables.score_cells(comparison)), *self._curves()]
        described = [*self._training(), *self._hyperparameters(), "### Speed", tables.speed(comparison.table)]
        return [title, *compared, *final, *described, *failed]

    def _draw(self, text: str, name: str, draw: Callable[..., None], *arguments: object) -> str:
        return image(text, self.pictures / f"{self.comparison.name}-{name}.png", draw, *arguments)

    def _overview(self) -> list[str]:
        """Show what a reader should see first: the verdict, and a table with scores, speed and KL."""
        comparison = self.comparison
        table = tables.overview(comparison, self.baseline or comparison.baseline)
        if not comparison.arrays:
            return [UNTESTED, table, OVERVIEW]
        envs = scores.scaled_envs(comparison.table)
        few = tables.too_few([len(own) for own in comparison.tested.values()], len(envs))
        said = tables.verdict(comparison.ranking, few, bool(comparison.incomplete), comparison.doubts)
        doubts = [tables.DOUBTFUL] if comparison.doubts else []
        return [said, *doubts, *tables.warn_of_scale(comparison), table, OVERVIEW, tables.NOISE]

    def _normalised(self) -> list[str]:
        comparison = self.comparison
        beside = {
            "Settings with a protocol of their own": comparison.scaling != comparison.scaled_by.labels,
            "Runs that were recorded elsewhere": comparison.scaled_by.labels != comparison.labels,
        }
        others = [NOT_SCALING.format(who=who) for who, are_there in beside.items() if are_there]
        blocks = ["### Normalised scores", NORMALISED, *others]
        scaled = scores.scaled_envs(comparison.table)
        if comparison.without_scale:
            blocks.append(f"Without {', '.join(comparison.without_scale)}, {tables.WITHOUT_SCALE}.")
        if scaled:
            blocks += name_incomplete(comparison.incomplete)
        return [*blocks, *self._against(), *self._paper(), *self._pictures()] if comparison.arrays else blocks

    def _against(self) -> list[str]:
        """Compare the other settings with one, if there are any."""
        baseline = self.baseline or self.comparison.baseline
        compared = tables.against(self.comparison, baseline)
        if len(compared):
            seeds = say_count(self.comparison.arrays[baseline], "seed")
            return [f"Against {escape_markdown(baseline)} ({seeds}): {AGAINST_BASELINE}", tables.markdown(compared)]
        if self.baseline is not None and self.baseline not in self.comparison.arrays:
            return [f"Without {escape_markdown(self.baseline)} here, nothing is compared with it."]
        return []

    def _paper(self) -> list[str]:
        """Write the comparison with the paper, which is empty if this is neither its Table 1 nor its Figure 3."""
        comparison = self.comparison
        if comparison.applied["preset"] == "paper-figure3" and (found := agreement.compare_with_figure(comparison)):
            drawn = self._draw(
                "Learning curves and the ends of the paper's", "figure3", plots.draw_figure_3, comparison
            )
            return ["#### Comparison with the paper's Figure 3", *found, drawn, FIGURED]
        in_paper = any(row.label in comparison.labels for row in TABLE_1)
        if comparison.applied["preset"] != "paper-table1" or not in_paper:
            return []
        means = statistics.means(comparison.arrays)
        names, signs = agreement.find_orders(means, comparison.differences)
        found = agreement.compare_with_paper(means, comparison.differences, comparison.incomplete)
        blocks = ["#### Comparison with the paper's Table 1", *found]
        if signs.any():
            blocks += [
                ORDERS,
                self._draw("Which pairs are in the paper's order", "orders", plots.draw_orders, names, signs),
            ]
        return blocks

    def _pictures(self) -> list[str]:
        arrays, labels = self.comparison.arrays, self.comparison.labels
        means = self._draw("Mean normalised scores", "aggregates", plots.draw_aggregates, arrays, labels)
        profiles = self._draw("Performance profiles", "profiles", plots.draw_profiles, arrays, labels)
        shares, curves = scores.normalised_curves(self.comparison)
        if not len(shares):
            return [means, AGGREGATES, profiles]
        curve = self._draw("Sample efficiency", "efficiency", plots.draw_efficiency, self.comparison, shares, curves)
        return [means, AGGREGATES, profiles, "#### Sample efficiency", EFFICIENCY, curve]

    def _human(self) -> list[str]:
        """Write the section on human-normalised scores, which is empty if there are no Atari games."""
        games = scores.normalise_by_humans(self.comparison.table)
        if games.empty:
            return []
        found = scores.arrays(games)
        incomplete = name_incomplete([label for label in games["label"].unique() if label not in found])
        shares = games.groupby(["label", "env"], sort=False)["normalised"].mean().unstack().astype(object)
        table = tables.markdown(shares.map("{:.3f}".format, na_action="ignore"))
        blocks = ["### Human-normalised scores", HUMAN, table, *incomplete]
        if games["env"].nunique() > 1 and found:
            means = statistics.means(found)
            blocks.append(GAMES.format(", ".join(f"{escape_markdown(label)} {mean}" for label, mean in means.items())))
        return blocks

    def _curves(self) -> list[str]:
        blocks = ["### Learning curves", LEARNING_CURVES, f"`{INTERACTIVE}` shows them interactively."]
        # Ids that differ only in characters that file names cannot have get a digest.
        names = {env: re.sub(r"[^A-Za-z0-9_-]", "_", env) for env in self.comparison.envs}
        counts = Counter(names.values())
        for env, name in names.items():
            unique = name if counts[name] == 1 else f"{name}-{records.digest(env)[:6]}"
            blocks.append(self._draw(f"Learning curves in {env}", unique, plots.draw_environment, self.comparison, env))
        return blocks

    def _training(self) -> list[str]:
        if not plots.list_quantities(self.comparison):
            return []
        drawn = self._draw("What the updates logged", "training", plots.draw_training, self.comparison)
        return ["### Training", TRAINING, drawn]

    def _hyperparameters(self) -> list[str]:
        """List the hyperparameters and the command, which are not known while there are only added runs."""
        own = self.comparison.own
        if not own.records:
            return []
        blocks = ["### Hyperparameters", *tables.hyperparameters(own)]
        command = tables.command(own)
        return blocks if command is None else [*blocks, "### Command", f"```sh\n{command}\n```"]


def name_incomplete(labels: Iterable[str]) -> list[str]:
    """Write a line about the settings without a seed in every environment, if there are any."""
    return [f"Without such a seed: {', '.join(map(escape_markdown, labels))}."] if labels else []


def image(text: str, file: Path, draw: Callable[..., None], *arguments: object) -> str:
    """Draw a picture to a file, and return it in Markdown."""
    draw(*arguments, file)
    return f"![{text}]({PICTURES}/{file.name})"


def html(text: str, folder: Path) -> str:
    """Convert the report from Markdown to a single HTML page, with its pictures, from the folder, embedded."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def embed(found: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((folder / found[1]).read_bytes()).decode()}"'

    body = re.sub(rf'src="({PICTURES}/[^"]+)"', embed, body)
    # Only these tags are restored. All others are shown as text, whatever the records contain.
    opened = r"<p>&lt;details&gt;&lt;summary&gt;([^<]*)&lt;/summary&gt;</p>"
    body = re.sub(opened, r"<details><summary>\1</summary>", body).replace("<p>&lt;/details&gt;</p>", "</details>")
    return plots.document("Comparison", REPORT_STYLE, body)
