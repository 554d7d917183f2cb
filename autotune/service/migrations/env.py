"""Alembic's environment: runs on the connection provided by `autotune.service.store`."""

from alembic import context

from autotune.service.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
