"""First tables. Later migrations alter them; this one does not change."""

from alembic import op

from autotune.service.migrations.initial import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    metadata.create_all(op.get_bind())
