"""Compare PPO variants with each other and with other algorithms, and report the results."""

import sys

from sb3_ppo_variants.commandline import run_command
from sb3_ppo_variants.compare.options import COMMANDS


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the command line names; see :func:`run_command`."""
    return run_command("python -m sb3_ppo_variants", __doc__, COMMANDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
