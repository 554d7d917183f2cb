"""Facts about machine and script, found without running anything."""
