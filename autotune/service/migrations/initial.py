"""Tables of the first migration. Frozen once released; until then they are the current ones."""

from autotune.service.tables import metadata

__all__ = ["metadata"]
