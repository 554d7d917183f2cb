"""One file per knob; standard library only."""
