"""A study as plain text: the answer screen, trials, notes in Markdown, and comparisons of studies."""
