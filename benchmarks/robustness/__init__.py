"""How robust each objective is to its hyperparameters: tables, and pictures, of the runs of --preset robustness."""
