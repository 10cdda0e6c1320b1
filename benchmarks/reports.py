"""Make the reports of the committed records and the tables of committed measurements again, for the documentation."""

import argparse
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

from sb3_ppo_variants.compare import records
from sb3_ppo_variants.compare.report import write_report

RESULTS = Path("results")
DOCS = Path("docs/reports")
# For each file of records, the baseline of its report, or None for SB3's PPO.
BASELINES = {
    "table1-text": "ppo_clip clip_range=0.2",
    "table1-code": "ppo_clip clip_range=0.2",
    "paper-figure3": "ppo_clip learning_rate=lin_0.0003",
    "sb3-1m": None,
    "same-learning": None,
    "separate-200k": "ppo_clip",
    "spinning-up": "ppo_clip",
    "hopper": None,
    "masked": "contrib_maskable_ppo",
    "recurrent": "contrib_recurrent_ppo",
    "details": "ppo_clip",
    "objectives-500k": "ppo_clip",
    "penalties-ant": "ppo_clip",
    "penalties-humanoid": "ppo_clip",
}
# The tables of each page: a heading, the module of the command that prints them, and the file that it reads.
TABLES = {
    "speed": (
        ("Training on an AMD EPYC (Zen 4), one thread", "throughput", "throughput-bars"),
        ("Training on an Intel Xeon, one thread", "throughput", "throughput-bars-xeon"),
        ("Breakout on an AMD EPYC (Zen 5), one thread", "throughput", "throughput-breakout"),
        ("All variants", "throughput", "throughput-variants"),
        ("Beside sb3-contrib", "throughput", "throughput-contrib"),
        ("On an NVIDIA H200, one thread", "throughput", "throughput-h200"),
        ("On an NVIDIA H200, eight threads", "throughput", "throughput-h200-8-threads"),
        ("Many environments, on EnvPool", "throughput", "throughput-n-envs"),
        ("Other packages", "peers", "peers"),
        ("Updates in several threads, on two cores", "threads", "threads"),
        ("Processes, on two cores", "scaling", "scaling"),
    ),
    "robustness": (("Random hyperparameters", "robustness.command", "robustness"),),
}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    names = [*BASELINES, *TABLES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="make only some of %(choices)s")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the folders (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Write each report into the folder of its name."""
    for name in options.only or [*BASELINES, *TABLES]:
        if name in TABLES:
            (options.out / name).mkdir(parents=True, exist_ok=True)
            (options.out / name / "report.md").write_text(tables_of(name))
            continue
        found = records.read(RESULTS / f"{name}.jsonl.gz")
        write_report(options.out / name, found, baseline=BASELINES[name])
        # The documentation does not show it.
        (options.out / name / "report.html").unlink()
    return 0


def tables_of(page: str) -> str:
    """Return a page of the tables that commands print from committed measurements."""
    parts = [f"# {page.capitalize()}: all tables"]
    for heading, module, file in TABLES[page]:
        command, parser = import_module(f"benchmarks.{module}"), argparse.ArgumentParser()
        command.add_command(parser)
        (data,) = RESULTS.glob(f"{file}.json*")
        shown = ["--from" if page == "robustness" else "--report", str(data)]
        bars = ["--bars"] if "bars" in file else []
        with redirect_stdout(StringIO()) as printed:
            command.run(parser.parse_args([*bars, *shown]))
        name = "robustness" if page == "robustness" else module
        made_by = " ".join(["python -m benchmarks", name, *bars, *shown])
        parts += [f"## {heading}", f"`{made_by}` prints this.", printed.getvalue().strip()]
    return "\n\n".join(parts) + "\n"
