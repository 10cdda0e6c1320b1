"""What a report says about a comparison, in Markdown: tables, lists and verdicts."""

import json
import math
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import sem

from sb3_ppo_variants.compare.config import list_presets
from sb3_ppo_variants.compare.records import LAST, RANDOM, Record
from sb3_ppo_variants.compare.scores import Comparison, arrays, find, normalise_by_humans, scaled_envs
from sb3_ppo_variants.compare.settings import has_argument, own_protocol, write_option
from sb3_ppo_variants.compare.statistics import (
    ALPHA,
    FEWEST_FOR_IQM,
    MARGIN,
    Ranked,
    interquartile_means,
    means,
    probability_of_improvement,
    seeds_needed,
    smallest_p,
)
from sb3_ppo_variants.recipes import PROTOCOLS

# Characters that would format a text or end the cell of a table. Underscores inside of words do not.
MARKDOWN_SIGNS = re.compile(r"[\\`*|<&~]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(")
# Hyperparameters that are shown at once if all settings share them. A click shows the others.
SHOWN_AT_ONCE = (
    "policy", "policy_kwargs", "n_envs", "n_steps", "batch_size", "n_epochs", "learning_rate", "gamma", "gae_lambda",
    "clip_range", "ent_coef", "vf_coef", "max_grad_norm", "normalize_advantage", "normalize", "env_wrapper", "updates",
)  # fmt: skip
# Reports say how many steps were made if a run made more than this multiple of what was asked for.
MOST_ROUNDED = 1.05
# Nothing learned where the best run is better than the random policy by fewer of the latter's standard errors.
CLEARLY = 5


def escape_markdown(text: str) -> str:
    """Escape text from records, so that Markdown shows it unchanged."""
    return MARKDOWN_SIGNS.sub(r"\\\g<0>", text)


def say_count(things: Collection[object], name: str) -> str:
    """Say how many things there are, such as "1 seed" or "3 seeds"."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def markdown(frame: pd.DataFrame, index: str | None = "setting") -> str:
    """Format a table as Markdown, with empty cells where values are missing.

    :param index: what the rows are; ``None`` leaves the index out
    """
    filled = frame.astype(object).where(frame.notna(), "")
    if index is not None:
        filled = filled.rename(index=escape_markdown).rename_axis(index)
    return str(filled.to_markdown(index=index is not None, disable_numparse=True))


def score_cells(comparison: Comparison) -> pd.DataFrame:
    """Compute the mean score of each setting in each environment, with the standard deviation over seeds, as text."""
    cells = comparison.table.groupby(["label", "env"])["score"].apply(_mean).unstack()
    cells.loc[RANDOM] = pd.Series(comparison.random_scores, dtype=float).map(format_number)
    return cells.loc[[RANDOM, *comparison.labels], comparison.envs]


def overview(comparison: Comparison, baseline: str) -> str:
    """Make a table of what is most asked about each setting: rank, score, speed, and the KL of an update.

    :param baseline: label of the setting that the speeds are compared with, if it is one of these
    """
    columns = ["seeds", "rank", "mean score", "better than", "worse than"]
    ranking, frame = comparison.ranking, comparison.table
    rows = {each.label: [each.seeds, each.ranks, each.value, len(each.better), len(each.worse)] for each in ranking}
    labels = [*dict.fromkeys([*rows, *comparison.labels])]
    cells = pd.DataFrame.from_dict(rows, orient="index", dtype=object, columns=columns).reindex(labels)
    if rows and len(scaled_envs(frame)) >= FEWEST_FOR_IQM:
        cells.insert(3, "IQM", pd.Series(interquartile_means(comparison.arrays)).map("{:.2f}".format))
    if len(comparison.envs) == 1:
        cells["return"] = frame.groupby("label")["score"].apply(_mean)
    paces = _paces(comparison, baseline)
    cells[paces.name] = paces
    cells["KL of an update"] = pd.Series({label: _kl(comparison, label) for label in labels})
    # Nothing is known of some columns in records of other libraries and of earlier versions.
    return markdown(cells.dropna(axis="columns", how="all"))


def _paces(comparison: Comparison, baseline: str) -> pd.Series:
    """Say how many steps per second each setting makes, and how many times as many as the baseline where both ran."""
    paces = comparison.table.groupby(["label", "env"])["steps_per_second"].mean().unstack()
    said = paces.mean(axis="columns").dropna().map("{:,.0f}".format).rename("steps per second")
    if baseline not in said:
        return said
    own = paces.loc[baseline].dropna()
    shared = paces[own.index]
    times = shared.mean(axis="columns") / shared.notna().apply(lambda both: own[both].mean(), axis="columns")
    compared = said + times[said.index].map(" ({:.1f} x)".format, na_action="ignore").fillna("")
    return compared.rename(f"steps per second (x {escape_markdown(baseline)})")


def _kl(comparison: Comparison, label: str) -> str | None:
    """Compute the median of the KL that a setting's updates logged, and the range of its middle 80%."""
    # SB3 logs an estimate, and records of earlier versions have neither.
    for name, about in (("kl", ""), ("approx_kl", "about ")):
        if logged := comparison.logged(label, name):
            low, middle, high = (f"{float(f'{value:.2g}'):g}" for value in np.percentile(logged, [10, 50, 90]))
            return f"{about}{middle} ({low} to {high})"
    return None


def speed(frame: pd.DataFrame) -> str:
    """Make a table of the steps per second and the times of each setting, as means over its runs."""
    # Runs that were recorded elsewhere may have no times.
    settings = frame.dropna(subset="wall_seconds").groupby("label", sort=False)
    means = settings[["steps_per_second", "wall_seconds", "cpu_seconds"]].mean().astype(object)
    cells = means.map("{:.0f}".format, na_action="ignore")
    cells.columns = pd.Index(["steps per second", "seconds of a run", "seconds of CPU of a run"])
    cells.insert(0, "runs", settings.size())
    return markdown(cells)


def failures(failed: Sequence[Record]) -> list[str]:
    """List the failed runs with their tracebacks."""
    blocks = []
    for record in failed:
        error = record["error"].strip()
        # The fence of a block of code must not occur in it.
        fence = "`" * max([2, *map(len, re.findall("`+", error))]) + "`"
        where = f"{escape_markdown(record['label'])}, {record['env']}, seed {record['seed']}"
        blocks.append(f"{where}:\n\n{fence}\n{error}\n{fence}")
    return blocks


def _mean(of_seeds: pd.Series) -> str:
    known = of_seeds.dropna()
    if known.empty:
        return "no episode ended"
    spread = f" ± {format_number(known.std())}" if len(known) > 1 else ""
    return f"{format_number(known.mean())}{spread} ({len(known)})"


def format_number(value: float) -> str:
    """Format a number with four digits, which is more than seeds agree on."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def summarize(comparison: Comparison) -> str:
    """List the conditions of a comparison, its numbers of runs, and the versions and machines that made them."""
    failed = [record for record in comparison.failed if record["label"] != RANDOM]
    trainings = [*comparison.records, *failed]
    everything = [*comparison.records, *comparison.failed, *comparison.random]
    frame = pd.DataFrame(trainings, columns=["label", "env", "seed"])
    names = {"label": "setting", "env": "environment", "seed": "seed"}
    counts = [say_count(frame[column].unique(), name) for column, name in names.items()]
    steps = sorted({record["timesteps"] for record in trainings})
    versions = sorted({", ".join(f"{n} {v}" for n, v in record["versions"].items()) for record in everything})
    lines = [
        *_conditions(comparison),
        f"runs: {len(comparison.records)} finished, {len(failed)} failed ({', '.join(counts)})",
        *([f"steps of a run: {', '.join(f'{number:,}' for number in steps)}"] if steps else []),
        *_whole_rollouts(comparison.own.records),
        *(["runs of different versions are compared here"] if len(versions) > 1 else []),
        *(f"versions: {line}" for line in versions),
        *(f"commit: {commit}" for commit in sorted({record.get("commit") or "" for record in everything}) if commit),
        *(f"machine: {line}" for line in sorted({record["machine"] for record in everything})),
        *_provenance(comparison.records),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _whole_rollouts(records: Sequence[Record]) -> list[str]:
    """Say in a line how many steps were made where whole rollouts are far more than what was asked for."""
    if all(record["steps"] <= MOST_ROUNDED * record["timesteps"] for record in records):
        return []
    made: dict[str, set[int]] = defaultdict(set)
    for record in records:
        made[record["label"]].add(record["steps"])
    ranges = {label: " to ".join(f"{steps:,}" for steps in sorted({min(of), max(of)})) for label, of in made.items()}
    said = ", ".join(f"{steps} ({escape_markdown(label)})" for label, steps in ranges.items())
    return [f"steps that were made, in whole rollouts: {said}"]


def _provenance(records: Sequence[Record]) -> list[str]:
    """Say in lines what computed some runs, and whether they can be compared seed by seed."""
    machines = Counter(
        f"{found['processor']}; native library: {found['native'] or 'not built'}, PyTorch: {found['torch']}"
        if (found := record.get("numerics"))
        else "not known, recorded by an earlier version"
        for record in records
    )
    lines = [f"processor: {machine} ({say_count(range(runs), 'run')})" for machine, runs in sorted(machines.items())]
    kinds = {(record["label"], str(record.get("numerics"))) for record in records}
    if len(machines) > 1 or len(kinds) > len({label for label, _ in kinds}):
        lines.append(
            "runs of different processors or backends are compared here: with the same seed, they would differ as runs "
            "of different seeds do"
        )
    envs = Counter(record["vec_env"] for record in records if "vec_env" in record)
    lines += [f"environments in a {name} ({say_count(range(runs), 'run')})" for name, runs in sorted(envs.items())]
    digests = {pair for record in records for pair in record.get("modules", {}).items()}
    versions = Counter(module for module, _ in digests)
    changed = sorted(module for module, number in versions.items() if number > 1)
    return [*lines, *(f"the code of {module} is not the same in all of these runs" for module in changed)]


def _conditions(comparison: Comparison) -> list[str]:
    conditions = comparison.applied
    protocol, every = conditions.get("protocol"), conditions.get("resume_every")
    sources = [source for source in (conditions["entry"], conditions["file"]) if source is not None]
    # The description names values of this entry too, and another source may have different ones.
    says = f", {PROTOCOLS[protocol].says}" if protocol and sources == ["mujoco"] else ""
    others = any(own_protocol(label) not in (None, protocol) for label in comparison.labels)
    yes_or_no = {None: None, True: "yes", False: "no"}

    def own(name: str) -> str:
        has_own = any(has_argument(label, name) for label in comparison.labels)
        return f"; settings with a {name} of their own follow that" * has_own

    given = {
        "protocol": protocol and f"{protocol}{says}{'; settings with a protocol of their own follow that' * others}",
        "but": conditions.get("switched"),
        "hyperparameters of": " in ".join(sources) or None,
        "changed": conditions["parameters"] or None,
        "normalised by VecNormalize": (said := yes_or_no[conditions["normalize"]]) and said + own("normalize"),
        "step size annealed to 0": (said := yes_or_no[conditions["anneal"]]) and said + own("learning_rate"),
        "new episodes with a checkpoint": every and f"every {every:,} steps",
    }
    return [f"{name}: {value}" for name, value in given.items() if value is not None]


def hyperparameters(comparison: Comparison) -> dict[str, str]:
    """Make tables of the hyperparameters that settings share, and of those that differ, and the command of the runs."""
    rows = {
        (record["label"], record["env"]): {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in record["hyperparameters"].items()
        }
        for record in comparison.records
    }
    frame = pd.DataFrame([*rows.values()], index=pd.MultiIndex.from_tuples(rows)).fillna("-").map(escape_markdown)
    frame = frame[sorted(frame, key=lambda name: (find(name, SHOWN_AT_ONCE), name))]
    is_shared = frame.nunique() == 1
    shared = frame.loc[:, is_shared].head(1).T.reset_index().set_axis(["hyperparameter", "value"], axis="columns")
    at_once = shared[shared["hyperparameter"].isin(SHOWN_AT_ONCE)]
    return {
        "shared": markdown(shared, None),
        "shared_at_once": markdown(at_once, None),
        "different": "" if is_shared.all() else markdown(_by_setting(frame.loc[:, ~is_shared]), None),
        "command": command(comparison) or "",
    }


def _by_setting(frame: pd.DataFrame) -> pd.DataFrame:
    """Make a row for each setting, or for each of its environments if they differ."""
    rows = []
    for label, found in frame.groupby(level=0, sort=False):
        alike = (found.nunique() == 1).all()
        for (_, env), values in (found.head(1) if alike else found.sort_index(level=1)).iterrows():
            rows.append([escape_markdown(str(label)), "all" if alike else env, *values])
    table = pd.DataFrame(rows, columns=["setting", "environment", *frame.columns])
    return table if (table["environment"] != "all").any() else table.drop(columns="environment")


def command(comparison: Comparison) -> str | None:
    """Write the command that makes the runs, or ``None`` if their file of hyperparameters or settings is needed."""
    conditions = comparison.conditions
    labels, envs = comparison.tried
    named = conditions["preset"]
    if conditions["file"] is not None or conditions.get("switched") or any("#" in label for label in labels):
        return None
    if named is not None and named not in list_presets():
        return None
    words = ["python", "-m", "sb3_ppo_variants", "compare", *(["--config", named] if named else [])]
    for option in ("protocol", "entry", "normalize", "anneal", "timesteps", "resume_every"):
        words += [] if conditions.get(option) is None else write_option(option, conditions[option])
    for parameter, value in conditions["parameters"].items():
        words += ["-p", f"{parameter}={value}"]
    words += ["--algos", *(label.replace(" ", ":", 1) for label in labels), "--envs", *envs]
    seeds = {record["seed"] for record in [*comparison.records, *comparison.failed]}
    return shlex.join([*words, "--seeds", str(1 + max(seeds))])


def compare_with_humans(comparison: Comparison) -> dict[str, str]:
    """Make a table of the scores in Atari games beside those of a human, which is empty if there are none."""
    games = normalise_by_humans(comparison.table)
    if games.empty:
        return {}
    shares = games.groupby(["label", "env"], sort=False)["normalised"].mean().unstack().astype(object)
    found = {"human": markdown(shares.map("{:.3f}".format, na_action="ignore"))}
    complete = arrays(games)
    found["human_incomplete"] = join_labels(label for label in games["label"].unique() if label not in complete)
    if games["env"].nunique() > 1 and complete:
        own = [f"{escape_markdown(label)} {mean}" for label, mean in means(complete).items()]
        found["human_means"] = ", ".join(own)
    return found


def name_not_scaling(comparison: Comparison) -> list[str]:
    """Say which runs do not set the scale of the scores."""
    by = comparison.scaled_by.labels
    own = ["Settings with a protocol of their own"] if comparison.scaling != by else []
    return [*own, *(["Runs that were recorded elsewhere"] if by != comparison.labels else [])]


def join_labels(labels: Iterable[str]) -> str:
    """Join labels for a sentence in Markdown."""
    return ", ".join(map(escape_markdown, labels))


def to_latex(comparison: Comparison) -> str:
    """Make LaTeX tables of what is known of a comparison, which need the package booktabs."""
    if comparison.table.empty:
        return ""
    title = f"{comparison.title} ({comparison.name})"
    final = score_cells(comparison).map(lambda cell: cell.replace("±", r"$\pm$") if isinstance(cell, str) else cell)
    columns = ["setting", "seeds", "mean", "rank", "better than"]
    ranked = [(e.label, e.seeds, str(e.value), e.ranks, ", ".join(e.better)) for e in comparison.ranking]
    frames = {"mean normalised scores, 95\\% intervals": pd.DataFrame(ranked, columns=columns).set_index("setting")}
    frames[f"mean return of the last {LAST} episodes, standard deviation, seeds"] = final.rename_axis("setting")
    return "\n".join(_latex(frame, f"{title}: {what}") for what, frame in frames.items() if len(frame))


def _latex(frame: pd.DataFrame, caption: str) -> str:
    def escape(text: object) -> str:
        return re.sub(r"(?<!\\)([&%#_{}])", r"\\\1", str(text))

    escaped = frame.rename(index=escape, columns=escape).map(lambda cell: "" if pd.isna(cell) else escape(cell))
    return str(escaped.to_latex(caption=escape(caption), position="htbp"))


def verdict(ranking: Sequence[Ranked], few: str, incomplete: bool, doubts: Mapping[str, str] | None = None) -> str:
    """Say in a line what is known about the best setting.

    :param few: see :func:`too_few`
    :param incomplete: whether there are settings that have runs, but none that count
    :param doubts: why some settings are not called better than others
    """
    best, others = ranking[0], ranking[1:]
    why = {each.label: "a single seed" for each in others if each.seeds == 1} | dict(doubts or {})

    def doubt(each: Ranked) -> str:
        return f" ({why[each.label]})" if each.label in why else ""

    said = f"**{escape_markdown(best.label)}**{doubt(best)} has the highest mean score, {best.value.value:.2f}"
    if not others:
        none = "no other setting has a seed in every environment" if incomplete else "there is no other setting"
        return f"{said}; {none}."
    if few:
        return f"{said}. {few}"
    alike = [escape_markdown(each.label) + doubt(each) for each in others if each.label not in best.better]
    if not alike:
        return f"{said}, and is better than all others {'that count ' if incomplete else ''}beyond noise."
    if not best.better:
        it = "It is not better than any other beyond noise: it" if best.seeds > 1 else "With its single seed, it"
        return f"{said}. {it} cannot be told apart from {', '.join(alike)}."
    better = f"It is better beyond noise than {', '.join(map(escape_markdown, best.better))}"
    return f"{said}. {better}, and cannot be told apart from {', '.join(alike)}."


def warn_of_scale(comparison: Comparison) -> str:
    """Warn of environments in which hardly anything learned, so that noise of the random policy decides the scores."""
    found = []
    for record in comparison.random:
        best = comparison.best_runs.get(record["env"])
        if best is not None and record["score"] is not None:
            several = [run["last_returns"] for run in (record, best) if len(run["last_returns"]) > 1]
            noise = math.hypot(*(float(sem(returns)) for returns in several))
            if 0 < comparison.best_scores[record["env"]] - record["score"] < CLEARLY * noise:
                found.append(record["env"])
    where = ", ".join(dict.fromkeys(found))
    warning = (
        f"In {where}, the best run is hardly better than the random policy. Scores there are divided by a small number "
        "and may decide the means: leave such environments out."
    )
    return warning if found else ""


def against(comparison: Comparison, baseline: str) -> pd.DataFrame:
    """Make a table that compares the other settings with one, or an empty one if there are no scores to compare."""
    scored, differences = comparison.arrays, comparison.differences
    other = scored.get(baseline)
    rows = {
        label: {
            "seeds": len(own),
            "P(better)": probability_of_improvement(own, other),
            "difference": (difference := differences[label, baseline]).estimate,
            "p": "" if math.isnan(difference.p) else "< 0.001" if difference.p < 0.001 else f"{difference.p:.2g}",
            f"equivalent within {MARGIN}": "yes" if comparison.are_equivalent(label, baseline) else "not shown",
        }
        for label, own in scored.items()
        if other is not None and label != baseline
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def too_few(seeds: Collection[int], envs: int) -> str:
    """Say that no test can tell settings with these numbers of seeds apart, and how many could; nothing if one can."""
    tested = [sorted(pair) for pair in combinations(seeds, 2) if min(pair) > 1]
    if not tested:
        return "With a single seed, nothing can be said about noise." if len(seeds) > 1 else ""
    least = min(smallest_p(first, second, envs) for first, second in tested)
    needed = ALPHA / len(tested)
    if least <= needed:
        return ""
    where = "one environment" if envs == 1 else f"{envs} environments"
    numbers = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    corrected = f", and a comparison of {len(tested)} pairs asks for {needed:.2g}" if len(tested) > 1 else ""
    enough = seeds_needed(math.comb(len(seeds), 2), envs)  # Of settings with a single seed, too.
    return (
        f"So few seeds cannot tell settings apart: with {numbers} seeds in {where}, the smallest p value of "
        f"two settings is {least:.2g}{corrected}. It takes at least {enough} seeds of each."
    )
