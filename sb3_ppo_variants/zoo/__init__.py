"""The RL Zoo with the algorithms and hyperparameters of this package.

Every script of rl_zoo3 is a module here, with the same options:
``python -m sb3_ppo_variants.zoo.train --algo ppo_clip``.
"""

from sb3_ppo_variants.errors import installation

try:
    import rl_zoo3
except ImportError as error:
    raise ImportError(f"rl_zoo3 is not installed: {installation('zoo')}") from error

from sb3_ppo_variants.zoo.registry import register

register()
# Python searches the folders of a package's __path__ in order for its modules, so a script that is not in this folder,
# such as train, is rl_zoo3's own.
for folder in rl_zoo3.__path__:
    __path__ += [folder, f"{folder}/plots"]
