"""Which configuration next; pure and seeded, no clock, no input or output."""
