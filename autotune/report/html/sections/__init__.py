"""The parts of the page, each made from a `View`; markup, or none where there is nothing to say.

`hero` is the first screen: `claim` says how much faster, `tiles` what it costs. Below it stands the
evidence, a section each: `picks`, `front` (speed against memory), `knobs`, `pairs` (confirmation),
`bottleneck`, `advice` (the script's own code), `runs` (steadiness), `loss`, `failures`, `timeline`,
`trials`, `environment` and `commands`.
"""
