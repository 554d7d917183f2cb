"""What a knob switches in the training process. Entry point: `actuators.patches`, handed to each knob."""
