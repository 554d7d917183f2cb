"""What one trial runs in: its folder, environment, isolated writes, compile caches and output."""
