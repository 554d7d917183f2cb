"""What sits in the machine."""
