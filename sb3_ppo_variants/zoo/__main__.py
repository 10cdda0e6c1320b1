"""Lists the scripts of the RL Zoo, each of which is a module of this package."""

SCRIPTS = {
    "train": "train an agent, or search hyperparameters with -optimize",
    "enjoy": "watch a trained agent",
    "record_video": "record a video of a trained agent",
    "record_training": "record a video of the checkpoints of a run",
    "benchmark": "evaluate all trained agents",
    "plot_train": "plot the returns of training",
    "plot_from_file": "plot a file of all_plots",
    "all_plots": "plot evaluations, and collect them in a file",
    "load_from_hub": "download an agent from the Hugging Face Hub",
    "push_to_hub": "upload an agent to the Hugging Face Hub",
}

if __name__ == "__main__":
    print("usage: python -m sb3_ppo_variants.zoo.SCRIPT --help, where SCRIPT is one of")
    for name, does in SCRIPTS.items():
        print(f"  {name:16}{does}")
