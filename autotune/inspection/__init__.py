"""Facts about machine and script, found without running the script."""
