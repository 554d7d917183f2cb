"""Models that predict throughput and memory of configurations from the runs of a study."""
