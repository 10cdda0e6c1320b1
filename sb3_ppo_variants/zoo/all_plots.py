"""Compare evaluations of several algorithms, and save them for plot_from_file: ``rl_zoo3.plots.all_plots``."""

from sb3_ppo_variants.zoo.launch import launch

if __name__ == "__main__":
    launch("plots.all_plots")
