"""Measure the variants: what they learn, how fast they train, and what their guards cost."""

import argparse
import sys
from importlib import import_module

from sb3_ppo_variants.errors import ArgumentError, installation

# The module of each command, by the name of the command.
COMMANDS = {
    "cold": "cold",
    "compare": "compare.command",
    "figures": "figures.command",
    "gallery": "gallery",
    "guard": "guard",
    "interpolation": "figures.interpolation",
    "kl-estimators": "figures.estimators",
    "paths": "paths",
    "peers": "peers",
    "report": "compare.report_command",
    "scaling": "scaling",
    "scaling-learning": "scaling_learning",
    "stepping": "stepping",
    "study": "compare.study_command",
    "throughput": "throughput",
    "verdicts": "verdicts",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark that the command line names.

    :param arguments: command-line arguments; ``None`` takes ``sys.argv``
    :return: exit code, 0 unless runs failed or the benchmark missed its bar
    :raises SystemExit: if the command line asks for something that is not allowed
    :raises ImportError: naming the extra to install, if a package is missing
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_ppo_variants.benchmark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="benchmark")
    try:
        for name, path in COMMANDS.items():
            module = import_module(f"sb3_ppo_variants.benchmark.{path}")
            # With abbreviations, --seed 7 would be --seeds 7.
            command = commands.add_parser(name, help=module.__doc__, description=module.__doc__, allow_abbrev=False)
            command.set_defaults(run=module.run)
            module.add_command(command)
    except ImportError as error:
        raise ImportError(f"the benchmarks need more packages: {installation('benchmark')}") from error
    try:
        options = parser.parse_args(arguments)
        return options.run(options)
    except ArgumentError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
