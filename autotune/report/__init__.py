"""Readers of a study.

What is said: `summary`, `gains`, `effects` and `why` in words and figures, `picks`, `commands` (what to type
next), `again`, `environment`, `wishes`, and `study_view`, a study as a report sees it; `shown` takes secrets
out. The page: `page` is its frame, `sections` are its parts; `markup`, `style`, and `svg` with the charts of
`figures` and `scatter` are what they are made of; `data` is the same as JSON. The terminal: `text`, `live`,
`look`, `compare`, `jsonl`. MLflow: `mlflow` and what begins so, `view`, and `notes` in Markdown.
"""
