"""From the reports of a trial process and samples taken outside of it to one measurement or failure."""
