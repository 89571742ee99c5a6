"""Managed workspaces: the installation, sources, workspaces, threads' own sandboxes."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("installation_id", sa.String(36), nullable=False),
    )
    op.create_table(
        "sources",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("json_bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_ms", sa.BigInteger, nullable=False),
        sa.Column("uploaded_ms", sa.BigInteger, nullable=True),
    )
    op.create_table(
        "source_rows",
        sa.Column("digest", sa.String(64), sa.ForeignKey("sources.digest", ondelete="CASCADE"), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "workspaces",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("thread_id", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("source_digest", sa.String(64), sa.ForeignKey("sources.digest"), nullable=False),
        sa.Column("intent", sa.Text, nullable=False),
        sa.Column("ready", sa.Text, nullable=True),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("workspaces_source", "workspaces", ["source_digest"])
    op.create_index("workspaces_state", "workspaces", ["state"])
    op.create_table(
        "thread_sandboxes",
        sa.Column("key", sa.String(64), sa.ForeignKey("workspaces.key", ondelete="CASCADE"), primary_key=True),
        sa.Column("payload", sa.Text, nullable=False),
    )
