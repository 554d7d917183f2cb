"""A study in MLflow: runs, artifacts and saved views. `mlflow.recorder` is the only importer of mlflow."""
