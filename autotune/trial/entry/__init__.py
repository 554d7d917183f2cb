"""Entry of a training process: hook installation, ranks, the fork server, the file redirect."""
