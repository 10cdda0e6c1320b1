"""The report: what the runs recorded so far say, as report.md, report.html and scores.csv."""

import base64
import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.compare import plots, records, statistics
from sb3_ppo_variants.compare.plan import read_config, read_setting
from sb3_ppo_variants.compare.records import LAST, RANDOM, Record
from sb3_ppo_variants.compare.scores import Comparison, comparisons
from sb3_ppo_variants.compare.statistics import MARGIN
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.recipes import PROTOCOLS
from sb3_ppo_variants.saving.files import write_atomically

# The subfolder of --out for pictures.
PICTURES = "pictures"
# More names than these are only counted in a sentence. Tables have them.
MOST_NAMES = 6
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, undefined=StrictUndefined,
    keep_trailing_newline=True,
)  # fmt: skip
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").use(anchors_plugin, max_level=3)
# Stands in the template for the contents, which are known at the end.
CONTENTS = "(contents)"
# Characters that would format a text or end the cell of a table. Underscores inside of words do not.
MARKDOWN_SIGNS = re.compile(r"[\\`*|<&~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(")


def write_report(
    out: Path,
    found: Sequence[Record],
    baseline: str | None = None,
    add: Sequence[str] = (),
    names: Sequence[str] = (),
    config: str | None = None,
    paper: bool = False,
) -> None:
    """Write the files of a report.

    :param baseline: the setting that the others are compared with; ``None`` for SB3's PPO
    :param add: runs that were recorded elsewhere, as ``LABEL=PATH``
    :param names: what settings are called, as ``SETTING=NAME``
    :param config: a comparison in a file that says so too, for :func:`read_config`
    :param paper: whether to write tables and figures for LaTeX too, and the tests of all pairs
    """
    compared = comparisons([*found, *records.read_beside(add, found)])
    labels = {label for each in compared for label in each.labels}

    def find(option: str, setting: str) -> str:
        label = setting if setting in labels else read_setting(setting).label
        if label not in labels:
            raise ArgumentError(f"{option} {setting!r} is not a recorded setting: {', '.join(sorted(labels))}")
        return label

    baseline = baseline and find("--baseline", baseline)
    shown = {} if config is None else {**read_config(config).names}
    shown |= {find("--names", setting): name for setting, _, name in (each.rpartition("=") for each in names)}
    for comparison in compared:
        comparison.names = shown
    pictures = out / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)

    def draw(name: str, function: Callable[..., None], comparison: Comparison, *arguments: object) -> str:
        named = re.sub(r"[^\w-]", "_", name)
        file = pictures / f"{comparison.name}-{named}.png"
        function(comparison, *arguments, file)
        return f"{PICTURES}/{file.name}"

    def embed(source: re.Match[str]) -> str:
        return f'src="data:image/png;base64,{base64.b64encode((out / unquote(source[1])).read_bytes()).decode()}"'

    TEMPLATES.filters |= {"table": write_table, "escape": escape}
    # Templates call the functions of this module.
    given = {"comparisons": compared, "baseline": baseline, "draw": draw, "plots": plots, "LAST": LAST}
    context = {**globals(), **given}
    text = add_contents(TEMPLATES.get_template("report.md.j2").render(context))
    body = re.sub(rf'src="({PICTURES}/[^"]+)"', embed, MARKDOWN.render(text))
    frames = [each.table.assign(comparison=each.name) for each in compared]
    contents = {
        out / "report.md": text,
        out / "report.html": TEMPLATES.get_template("report.html.j2").render(body=body),
        out / "scores.csv": pd.concat(frames).to_csv(index=False) if frames else "",
    }
    if paper:
        contents[out / "paper.tex"] = TEMPLATES.get_template("paper.tex.j2").render(context)
        tests = {
            (each.title, name, label): tabulate_differences(part, label)
            for each in compared for name, part in each.parts.items() for label in part.arrays
        }  # fmt: skip
        frame = pd.concat(tests, names=["comparison", "environment", "other", "setting"]) if tests else pd.DataFrame()
        contents[out / "tests.csv"] = frame.to_csv()
    for file, content in contents.items():
        write_atomically(file, content.encode())
    print(f"Report: {', '.join(map(str, contents))}")


def add_contents(text: str) -> str:
    """List the sections at the top of a report: the comparisons, or the parts of a single one."""
    pairs = pairwise(MARKDOWN.parse(text))
    headings = [(token.tag, token.attrs["id"], inline.content) for token, inline in pairs if "id" in token.attrs]
    has_several = sum(tag == "h2" for tag, _, _ in headings) > 2  # One is "Methods".
    links = [f"[{title}](#{name})" for tag, name, title in headings if tag == "h2" or (tag == "h3" and not has_several)]
    return text.replace(CONTENTS, " · ".join(links), 1)


def escape(text: object) -> str:
    """Escape text from records, so that Markdown shows it unchanged."""
    return MARKDOWN_SIGNS.sub(r"\\\g<0>", str(text))


def count(things: Collection[object], name: str) -> str:
    """Say how many things there are, such as "1 seed" or "3 seeds"."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def write_table(frame: pd.DataFrame, index: str | None = "setting", name: Callable[[str], str] = str) -> str:
    """Write a table as Markdown, with empty cells where values are missing, and without the index if it has no name."""
    filled = frame.astype(object).where(frame.notna(), "").rename(index=lambda label: escape(name(label)))
    return str(filled.rename_axis(index).to_markdown(index=index is not None, disable_numparse=True))


def summarize(comparison: Comparison) -> list[str]:
    """List the conditions of a comparison, its numbers of runs, and the versions and machines that made them."""
    failed = [record for record in comparison.failed if record["label"] != RANDOM]
    trainings, conditions = [*comparison.own, *failed], comparison.conditions
    everything = [*trainings, *comparison.random]
    frame = pd.DataFrame(trainings, columns=["label", "env", "seed", "timesteps"])
    things = {"label": "setting", "env": "environment", "seed": "seed"}
    counts = [count(frame[column].unique(), thing) for column, thing in things.items()]

    def join(values: Values) -> str:
        return ", ".join(f"{name} {value}" for name, value in values.items())

    protocol = conditions.get("protocol")
    # Another entry or a file has other values than the protocol names.
    if protocol and conditions["entry"] == "mujoco" and conditions["file"] is None:
        protocol = f"{protocol}, {PROTOCOLS[protocol].says}"
    facts = {
        **conditions,
        "preset": None,
        "protocol": protocol,
        "timesteps": ", ".join(f"{steps:,}" for steps in sorted(frame["timesteps"].unique())),
        "runs": f"{len(comparison.own)} finished, {len(failed)} failed ({', '.join(counts)})",
        "commit": ", ".join(sorted({each.get("commit") or "" for each in everything} - {""})),
    }
    lines = [f"{name.replace('_', ' ')}: {fact}" for name, fact in facts.items() if fact not in (None, "", {})]
    lines += [f"versions: {each}" for each in sorted({join(each["versions"]) for each in everything})]
    lines += [f"machine: {each}" for each in sorted({each["machine"] for each in everything})]
    computed = {(each["label"], join(each.get("numerics", {}))) for each in comparison.own}
    names = sorted({numerics for _, numerics in computed})
    lines += [f"computed by: {each or 'not known, in an earlier version'}" for each in names]
    if len(computed) > len({label for label, _ in computed}):
        differ = "with the same seed, they would differ as runs of different seeds do"
        lines.append(f"runs of different processors or backends are compared here: {differ}")
    return lines


def say_verdict(comparison: Comparison) -> str:
    """Say what is known about the best setting: what it is better than, and what it is equivalent to."""
    if not comparison.arrays:
        return "No setting has a seed with normalised scores in every environment, so nothing is tested."
    best, *others = comparison.ranking
    doubts = {each.label: "a single seed" for each in others if each.seeds == 1} | comparison.doubts

    def name(label: str) -> str:
        bold = "**" if label == best.label else ""
        said = f"{bold}{escape(comparison.show(label))}{bold}"
        return f"{said} ({doubts[label]})" if label in doubts else said

    said = f"{name(best.label)} has the highest mean score, {best.value.value:.2f}"
    if not others:
        has_runs = "no other setting has a seed in every environment"
        return f"{said}; {has_runs if comparison.incomplete else 'there is no other setting'}."
    if few := say_too_few([len(own) for own in comparison.tested.values()], len(comparison.scaled_envs)):
        return f"{said}. {few}"
    alike = [each.label for each in others if each.label not in best.better]
    if not alike:
        counting = "that count " if comparison.incomplete else ""
        return f"{said}, and is better than all others {counting}beyond noise."
    if len(others) == 1:
        yes, no = (f"{whether} within {MARGIN}" for whether in ("equivalent", "no evidence that they are equivalent"))
        whether = _say_equivalence(comparison, best.label, alike[0], yes, no)
        return f"{name(best.label)} and {name(alike[0])}: no difference shown; {whether}."
    alike_to = f"cannot be told apart from {_list([*map(name, alike)])}"
    if best.seeds == 1:
        return f"{said}. With its single seed, it {alike_to}."
    better = f"is better beyond noise than {_list([*map(name, best.better)])}, and " if best.better else ""
    equal = [
        _say_equivalence(comparison, best.label, other, name(other), "")
        for other in alike
        if comparison.are_equivalent(best.label, other)
    ]
    within = f"; equivalent to it within {MARGIN}: {_list(equal)}" if equal else ""
    return f"{said}. It {better}{alike_to}{within}."


def _list(names: Sequence[str]) -> str:
    """Write some names with commas, and count many."""
    return ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} settings"


def _say_equivalence(comparison: Comparison, one: str, other: str, yes: str, no: str) -> str:
    """Say whether two settings are equivalent, in these words, and the interval that decides."""
    if {one, other} & comparison.doubts.keys() or not comparison.differences[one, other].estimate.is_certain:
        return "equivalence not tested"
    low, high = statistics.interval_of_equivalence(comparison.arrays[one], comparison.arrays[other])
    return f"{yes if comparison.are_equivalent(one, other) else no} (90% interval {low:.2f} to {high:.2f})"


def say_too_few(seeds: Sequence[int], envs: int) -> str:
    """Say that no test can tell settings with these numbers of seeds apart, and how many could; nothing if one can."""
    tested = [sorted(pair) for pair in combinations(seeds, 2) if min(pair) > 1]
    if not tested:
        return "With a single seed, nothing can be said about noise." if len(seeds) > 1 else ""
    least = min(statistics.smallest_p(first, second, envs) for first, second in tested)
    enough = statistics.seeds_needed(math.comb(len(seeds), 2), envs)  # Of settings with a single seed, too.
    said = f"So few seeds cannot tell settings apart: it takes at least {enough} of each."
    return said if least > statistics.ALPHA / len(tested) else ""


def tabulate_scores(comparison: Comparison, spread: Callable[[pd.Series], float] = pd.Series.std) -> pd.DataFrame:
    """Tabulate the mean score of each setting in each environment, with a spread over seeds, as text."""
    scores = comparison.table.groupby(["label", "env"])["score"]
    cells = scores.apply(format_mean, counted=not count_seeds(comparison), spread=spread).unstack()
    cells.loc[RANDOM] = pd.Series(comparison.random_scores, dtype=float).map(format_number)
    return cells.loc[[RANDOM, *comparison.labels], comparison.envs]


def count_seeds(comparison: Comparison) -> int:
    """Return the number of scores of each setting in each environment, 0 if they differ."""
    counts = set(comparison.table.groupby(["label", "env"])["score"].count())
    return counts.pop() if len(counts) == 1 else 0


def say_seeds(comparison: Comparison) -> str:
    """Say what the means are over."""
    number = count_seeds(comparison)
    return count(range(number), "seed") if number else "seeds, whose number is in brackets,"


def tabulate_overview(comparison: Comparison, baseline: str) -> pd.DataFrame:
    """Tabulate what is most asked about each setting: return, score, rank, speed, and the KL of an update."""
    cells = pd.DataFrame(index=comparison.labels, dtype=object)
    if len(comparison.envs) == 1:
        scores = comparison.table.groupby("label")["score"]
        cells["return"] = scores.apply(format_mean, counted=not count_seeds(comparison))
    cells["score"] = pd.Series({each.label: str(each.value) for each in comparison.ranking}, dtype=object)
    if len(comparison.scaled_envs) >= statistics.FEWEST_FOR_IQM:
        cells["IQM"] = pd.Series(statistics.interquartile_means(comparison.arrays)).map("{:.2f}".format)
    cells["rank"] = pd.Series({each.label: each.ranks for each in comparison.ranking}, dtype=object)
    paces = comparison.table.groupby(["label", "env"])["steps_per_second"].mean().unstack()
    cells["steps per second"] = paces.mean(axis=1).dropna().map("{:,.0f}".format)
    if baseline in paces.index:
        # In the environments of both.
        ratios = (paces / paces.loc[baseline]).mean(axis=1).dropna()
        cells["speed"] = ratios.map("{:.1f}x".format)
    cells["KL of an update"] = pd.Series({label: _kl(comparison, label) for label in cells.index}, dtype=object)
    # Nothing is known of some columns in records of other libraries and of earlier versions.
    return cells.dropna(axis="columns", how="all")


def _kl(comparison: Comparison, label: str) -> str | None:
    """Say the median of the KL that a setting's updates logged, of which SB3 logs an estimate, and its middle 80%."""
    for name, about in (("kl", ""), ("approx_kl", "about ")):
        if logged := comparison.logged(label, name):
            low, middle, high = (f"{float(f'{value:.2g}'):g}" for value in np.percentile(logged, [10, 50, 90]))
            return f"{about}{middle} ({low} to {high})"
    return None


def tabulate_differences(comparison: Comparison, baseline: str) -> pd.DataFrame:
    """Tabulate how the other settings compare with one; nothing if there are no scores to compare."""
    scored = comparison.arrays
    rows = {}
    for label, own in scored.items():
        if label != baseline and baseline in scored:
            difference = comparison.differences[label, baseline]
            rows[label] = {
                "seeds": len(own),
                "P(better)": statistics.probability_of_improvement(own, scored[baseline]),
                "difference": difference.estimate,
                "p": "" if math.isnan(difference.p) else "< 0.001" if difference.p < 0.001 else f"{difference.p:.2g}",
                f"equivalent within {MARGIN}": _say_equivalence(comparison, label, baseline, "yes", "no evidence"),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def tabulate_hyperparameters(comparison: Comparison) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tabulate the hyperparameters that all settings share in all environments, and those that differ."""
    rows = {
        (comparison.show(record["label"]), record["env"]): {
            name: escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in record["hyperparameters"].items()
        }
        for record in comparison.own
    }
    names = ["setting", "environment"]
    frame = pd.DataFrame([*rows.values()], index=pd.MultiIndex.from_tuples(rows or [("", "")][:0], names=names))
    frame = frame.fillna("-").sort_index(axis="columns")
    frame = frame.reindex([*dict.fromkeys(map(comparison.show, comparison.labels))], level="setting")
    is_shared = frame.nunique() == 1
    shared = frame.loc[:, is_shared].head(1).T.set_axis(["value"][: len(rows)], axis="columns")
    different = frame.loc[:, ~is_shared]
    # Settings that are the same in all of their environments have a single row.
    alike = different.reset_index("environment", drop=True)
    alike = alike[~alike.assign(setting=alike.index).duplicated()]
    if not alike.index.is_unique:
        alike = different.set_axis([f"{label}, {env}" for label, env in different.index])
    # The longer side is that of the rows.
    return shared, alike.rename_axis("setting") if len(alike) > alike.shape[1] else alike.T.rename_axis(
        "hyperparameter"
    )


def half_of_interval(own: np.ndarray | pd.Series) -> float:
    """Compute half the width of the 95% interval of the mean of scores, NaN if there is none."""
    return float(np.ptp(statistics.interval(np.asarray(own).reshape(len(own), -1))) / 2)


def format_mean(of_seeds: pd.Series, counted: bool = True, spread: Callable[[pd.Series], float] = pd.Series.std) -> str:
    """Write a mean with a spread, unless that is NaN, and the number of seeds if they are ``counted``."""
    known = of_seeds.dropna()
    if known.empty:
        return "no episode ended"
    mean = format_number(known.mean())
    digits, width = len(mean.partition(".")[2]), spread(known)
    return f"{mean}{'' if math.isnan(width) else f' ± {width:.{digits}f}'}{f' ({len(known)})' * counted}"


def format_number(value: float) -> str:
    """Write a number with four digits, which is more than seeds agree on."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
