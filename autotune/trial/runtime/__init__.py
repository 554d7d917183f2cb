"""State of the training process shared by the hooks: undo list, imports, faults, memory, channel."""
