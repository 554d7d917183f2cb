"""Hooks in what several processes exchange: DDP, FSDP2, the CPUs of each process."""
