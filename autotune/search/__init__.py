"""Which configuration next; pure and seeded, no clock, no input or output.

`stages` is the search itself. It reads the study into a `state`, tries the `initial_design`, then what
`refining` and `second_looks` ask for by the `acquisition` of `candidates`, until a rule of `stopping`
holds. `finalists` is what screening hands on; `confirmation` runs them in cycles, and `racing` says who
still takes part. `throughput_model`, `memory_model`, `feasible` and `costs` learn from what has run;
`course` is what is settled before anything has.
"""
