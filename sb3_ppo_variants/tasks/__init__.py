"""Tasks for masked and recurrent policies. Importing this module registers ``Scheduling-v0`` and the ``NoVel`` tasks.

An id that names the module imports it: ``"sb3_ppo_variants.tasks:Scheduling-v0"``.
"""

from sb3_ppo_variants.tasks.memory import HiddenNumbers
from sb3_ppo_variants.tasks.scheduling import Scheduling

__all__ = ["HiddenNumbers", "Scheduling"]
