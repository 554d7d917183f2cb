"""The search space of one script on one machine, and the delivery of each value to the script.

Entry points: `space.build_space` and `space.choose_delivery`. Pure. Imports `knobs` and `model`.
"""
