"""Command line of the benchmarks."""

import argparse
import sys

from sb3_ppo_variants.benchmark import learning


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark that the command line names.

    :param arguments: command line; ``None`` takes the process's
    :return: exit code, 0 if the benchmark's bars are met
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_ppo_variants.benchmark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="benchmark")
    learning.add_command(commands.add_parser("learning", help=learning.__doc__, description=learning.__doc__))
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
