"""Selection of the configuration to run next: a pure, seeded function of the study.

Entry points: `strategy`, the interface of every search, and `stages`, the search itself: baseline, initial
design, refinement, confirmation. `screening` proposes configurations, `confirmation` proves them, `models`
predict throughput and memory, `samplers` holds the alternatives. `costs` prices each run. Imports `knobs`
and below; no clock, no input or output.
"""
