"""Renderers of a study: terminal, plain text, HTML report, JSON and MLflow.

`view` computes every figure and sentence; `text`, `terminal`, `html` and `mlflow` format them. Entry points:
`text.answer_screen`, `terminal.live_view`, `html.page`, `mlflow.recorder`. Imports `answer`, `knobs` and
below.
"""
