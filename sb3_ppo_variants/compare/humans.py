"""Human-normalised scores of Atari games."""

import re

import pandas as pd

# The undiscounted returns of a random policy and of a professional human tester, after up to 30 initial no-ops and with
# at most 30 minutes of play, as in DeepMind's DQN Zoo (https://github.com/google-deepmind/dqn_zoo, atari_data.py). They
# come from Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning".
RANDOM_AND_HUMAN = {
    "Alien": (227.8, 7127.7), "Amidar": (5.8, 1719.5), "Assault": (222.4, 742), "Asterix": (210, 8503.3),
    "Asteroids": (719.1, 47388.7), "Atlantis": (12850, 29028.1), "BankHeist": (14.2, 753.1),
    "BattleZone": (2360, 37187.5), "BeamRider": (363.9, 16926.5), "Berzerk": (123.7, 2630.4), "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1), "Breakout": (1.7, 30.5), "Centipede": (2090.9, 12017), "ChopperCommand": (811, 7387.8),
    "CrazyClimber": (10780.5, 35829.4), "Defender": (2874.5, 18688.9), "DemonAttack": (152.1, 1971),
    "DoubleDunk": (-18.6, -16.4), "Enduro": (0, 860.5), "FishingDerby": (-91.7, -38.7), "Freeway": (0, 29.6),
    "Frostbite": (65.2, 4334.7), "Gopher": (257.6, 2412.5), "Gravitar": (173, 3351.4), "Hero": (1027, 30826.4),
    "IceHockey": (-11.2, 0.9), "Jamesbond": (29, 302.8), "Kangaroo": (52, 3035), "Krull": (1598, 2665.5),
    "KungFuMaster": (258.5, 22736.3), "MontezumaRevenge": (0, 4753.3), "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049), "Phoenix": (761.4, 7242.6), "Pitfall": (-229.4, 6463.7), "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3), "Qbert": (163.9, 13455), "Riverraid": (1338.5, 17118), "RoadRunner": (11.5, 7845),
    "Robotank": (2.2, 11.9), "Seaquest": (68.4, 42054.7), "Skiing": (-17098.1, -4336.9), "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148, 1668.7), "StarGunner": (664, 10250), "Surround": (-10, 6.5), "Tennis": (-23.8, -8.3),
    "TimePilot": (3568, 5229.2), "Tutankham": (11.4, 167.6), "UpNDown": (533.4, 11693.2), "Venture": (0, 1187.5),
    "VideoPinball": (16256.9, 17667.9), "WizardOfWor": (563.5, 4756.5), "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}  # fmt: skip
# ALE/Breakout-v5, BreakoutNoFrameskip-v4, BreakoutDeterministic-v4 and Breakout-v4 are the same game. A module to
# import may come first, as in ale_py:ALE/Breakout-v5.
GAME = re.compile(r"(?:.+:)?(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v\d+")


def game_of(env: str) -> str | None:
    """Return the name of an environment's Atari game, or ``None`` if there is no human score for it."""
    found = GAME.fullmatch(env)
    return found[1] if found and found[1] in RANDOM_AND_HUMAN else None


def normalised(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of Atari games, with ``normalised`` 0 for the published random policy and 1 for the human.

    :param frame: table with the columns ``env`` and ``score``
    """
    games = frame["env"].map(game_of, na_action="ignore")
    found = frame[games.notna()].copy()
    low, high = (games.dropna().map({game: pair[end] for game, pair in RANDOM_AND_HUMAN.items()}) for end in (0, 1))
    found["normalised"] = (found["score"] - low) / (high - low)
    return found
