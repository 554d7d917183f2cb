"""The command `autotune`, and `python -m autotune`.

The machine is looked at first: where it does not do, that is said, and not whatever import fails there.
"""

import sys

from autotune.errors import BackendError
from autotune.model.supported import refusal


def main() -> None:
    """Run the command line of this process, or say why that cannot be done here."""
    reason = refusal(sys.platform, sys.version_info)
    if reason:
        sys.stderr.write(f"error: {reason}\n")
        raise SystemExit(BackendError.exit_code)
    try:
        from autotune.cli.main import main as command
    except Exception as error:
        from autotune.shortage import shortage  # not above: other systems lack what it imports

        lacks = shortage(error)
        if lacks is None:
            raise
        sys.stderr.write(f"error: {lacks.message}\nhint: {lacks.hint}\n")
        raise SystemExit(lacks.exit_code) from None
    command()


if __name__ == "__main__":
    main()
