"""A pick in the words of other programs: command lines, variables, frameworks' settings, a diff."""
