"""Command line of autotune: one file per command.

`main` contains the table of commands and the last exception handler. `open_study` opens a study from its
journal. `outcome` prints the result of a search. Modules import typer and the standard library at the top,
and everything else inside the command, so that help and errors are fast.
"""

import time as _time

BEGAN_S = _time.monotonic()
"""Start of this module, in monotonic seconds. The age of the process can be too large: a shell that
replaces itself with autotune (`exec`, the last command of ``bash -c``) passes its own age on."""
