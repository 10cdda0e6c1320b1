"""Command line of the benchmarks."""

import argparse
import sys

from sb3_ppo_variants.benchmark import agreement, cold, gallery, guard, learning, stepping, throughput
from sb3_ppo_variants.benchmark.compare import command as compare
from sb3_ppo_variants.benchmark.compare import report_command as report

COMMANDS = (
    ("agreement", agreement),
    ("cold", cold),
    ("compare", compare),
    ("gallery", gallery),
    ("guard", guard),
    ("learning", learning),
    ("report", report),
    ("stepping", stepping),
    ("throughput", throughput),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark that the command line names.

    :param arguments: command line; ``None`` takes the process's
    :return: exit code, 0 if what the benchmark asks for is met
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_ppo_variants.benchmark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="benchmark")
    for name, module in COMMANDS:
        module.add_command(commands.add_parser(name, help=module.__doc__, description=module.__doc__))
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except ImportError as error:
        raise ImportError("the benchmarks need more: pip install 'sb3_ppo_variants[benchmark]'") from error


if __name__ == "__main__":
    sys.exit(main())
