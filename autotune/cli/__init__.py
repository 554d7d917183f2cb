"""The command line: one file per verb.

`main` holds the table of verbs and the last catch; `command` reads what the user wrote after
``--``; `spec` turns options into a `StudySpec`; `opened` opens a study from its journal; `ended`
prints how a search ended. Modules import typer and the standard library at the top and everything
else inside the verb, so that help and errors are quick.
"""

import time as _time

BEGAN_S = _time.monotonic()
"""When the interpreter came here, monotonic seconds. The age of the process would not do: a shell that
replaces itself with us (`exec`, the last command of ``bash -c``) hands its own age on."""
