"""Files and values that people write: space files, presets, settings, durations and amounts of memory.

Entry points: `config_files.presets` and `config_files.settings`. Imports pydantic and PyYAML.
"""
