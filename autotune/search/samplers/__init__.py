"""Alternative proposers of configurations. `samplers.optuna_sampler` is the only importer of optuna."""
