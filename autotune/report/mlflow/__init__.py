"""A study in MLflow: runs, artifacts and saved views.

Entry point: `recorder.MlflowSink`. `connection` is the only importer of mlflow.
"""
