"""Which configuration to measure next: initial design, refinement and replication. Pure."""
