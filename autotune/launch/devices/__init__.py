"""CPUs and accelerators of this machine: claims, locks between searches, and checks for other load."""
