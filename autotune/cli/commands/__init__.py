"""One module per command of `autotune`."""
