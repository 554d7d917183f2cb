"""Changes that knobs make in the training process. Entry point: `actuators.patches`, passed to each knob."""
