"""One file per knob, grouped by what the knob acts on.

`base` defines a knob, `registry` lists all of them by name. torch is passed in, never imported. Imports
`model`, `answer` and the standard library.
"""
