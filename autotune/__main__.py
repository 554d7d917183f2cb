"""The command `autotune`, and `python -m autotune`.

The system is checked first, so that an unsupported one gets a clear message instead of a failed import.
"""

import sys

from autotune.errors import BackendError
from autotune.model.supported import refusal


def main() -> None:
    """Run the command line of this process, or exit with the reason why this machine cannot run it."""
    reason = refusal(sys.platform, sys.version_info)
    if reason:
        sys.stderr.write(f"error: {reason}\n")
        raise SystemExit(BackendError.exit_code)
    try:
        from autotune.cli.main import main as command
    except Exception as error:
        from autotune.shortage import shortage  # late: `resource` does not exist on every system

        found = shortage(error)
        if found is None:
            raise
        sys.stderr.write(f"error: {found.message}\nhint: {found.hint}\n")
        raise SystemExit(found.exit_code) from None
    command()


if __name__ == "__main__":
    main()
