"""Tasks for masked and recurrent policies; importing this registers ``Scheduling-v0`` and those of :mod:`.memory`.

An id that names this module is enough: ``"sb3_ppo_variants.tasks:Scheduling-v0"``.
"""

from sb3_ppo_variants.tasks.memory import HiddenNumbers
from sb3_ppo_variants.tasks.scheduling import Scheduling

__all__ = ["HiddenNumbers", "Scheduling"]
