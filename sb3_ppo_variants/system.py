"""System information for bug reports."""

from importlib import import_module
from pathlib import Path

from stable_baselines3.common import utils


def get_system_info(print_info: bool = True) -> tuple[dict[str, str], str]:
    """Return the versions that SB3's function of the same name lists (Python, PyTorch, SB3, ...) and this package's.

    :param print_info: whether to print them
    :return: a dict of the versions, with the path of this package, and the same as text
    """
    info, text = utils.get_system_info(print_info=False)
    package = import_module(str(__package__))
    own = {"sb3_ppo_variants": f"{package.__version__} ({Path(__file__).parent})"}
    text = "".join(f"- {name}: {value}\n" for name, value in own.items()) + text
    if print_info:
        print(text)
    return own | info, text
