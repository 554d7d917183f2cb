"""The nouns of the system: configurations, knob values, facts, trials, studies and their wire form.

Every value is a frozen dataclass of plain data. Entry points: `model.study` and `model.trial`. Imports the
standard library only; every other package may import this one.
"""
