"""State of the training process that the hooks share: undo list, imports, faults, memory, channel."""
