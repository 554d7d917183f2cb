"""Contract tests for people who write knobs, runners and drivers."""
