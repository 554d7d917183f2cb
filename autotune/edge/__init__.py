"""Files that people write: YAML, validated and turned into core types."""
