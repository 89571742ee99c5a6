"""Alembic's entry: runs the steps on the connection that `open_storage` hands over, inside its transaction."""

from alembic import context

from b4run.storage.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
