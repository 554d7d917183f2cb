"""Sections of the page, each made from a `View`; empty markup if a section has no content.

`hero` is the first screen: `claim` shows the speedup, `tiles` its costs. The other sections are evidence:
`picks`, `front` (speed against memory), `knobs`, `pairs` (confirmation), `bottleneck`, `advice` (the script's
own code), `runs` (steadiness), `loss`, `failures`, `timeline`, `trials`, `environment` and `commands`.
"""
