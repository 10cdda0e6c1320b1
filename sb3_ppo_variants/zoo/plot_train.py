"""Plot the rewards of trainings: ``rl_zoo3.plots.plot_train``."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("plots.plot_train")
