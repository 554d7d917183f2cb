"""From a Config to the way a script is started."""
