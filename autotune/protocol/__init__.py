"""Messages between a trial process and its launcher; standard library only."""
