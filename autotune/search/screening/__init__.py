"""Selection of the next config to measure: initial design, refinement and replication. Pure."""
