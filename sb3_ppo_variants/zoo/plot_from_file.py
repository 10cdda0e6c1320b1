"""Plot what all_plots saved: ``rl_zoo3.plots.plot_from_file``."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("plots.plot_from_file")
