"""Alembic's environment: runs on the connection that `autotune.service.store` hands over."""

from alembic import context

from autotune.service.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
