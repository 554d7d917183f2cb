"""Prints its environment, and fails."""

import json
import os

print("ENVIRONMENT", json.dumps(dict(os.environ)), flush=True)
raise SystemExit("that was all")
