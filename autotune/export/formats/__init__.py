"""A pick in the formats of other programs: command lines, variables, frameworks' settings, a diff."""
