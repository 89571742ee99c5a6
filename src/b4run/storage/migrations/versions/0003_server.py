"""The server: threads, their runs and what these told, who has a thread to itself, uploaded workspaces; grants that expire."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("grants", sa.Column("expires_ms", sa.BigInteger, nullable=True))
    op.create_table(
        "source_uploaders",
        sa.Column("digest", sa.String(64), sa.ForeignKey("sources.digest", ondelete="CASCADE"), primary_key=True),
        sa.Column("uploader", sa.String(64), primary_key=True),
        sa.Column("stamp", sa.Text, nullable=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("first_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("source_uploaders_uploader", "source_uploaders", ["uploader"])
    op.create_table(
        "staged",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("thread_id", sa.Text, nullable=False),
        sa.Column("source_digest", sa.String(64), sa.ForeignKey("sources.digest"), nullable=False),
        sa.Column("reference", sa.Text, nullable=False),
    )
    op.create_index("staged_source", "staged", ["source_digest"])
    op.create_table(
        "threads",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("thread_id", sa.Text, nullable=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("access", sa.Text, nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("route", sa.Text, nullable=True),
        sa.Column("parked_route", sa.Text, nullable=True),
        sa.Column("deleting", sa.Boolean, nullable=False),
    )
    op.create_index("threads_updated", "threads", ["updated_ms", "key"])
    op.create_index("threads_status", "threads", ["status"])
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(34), primary_key=True),
        sa.Column("key", sa.String(64), sa.ForeignKey("threads.key", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("outcome", sa.Text, nullable=True),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("idempotency_key", sa.String(255), nullable=True),
        sa.UniqueConstraint("key", "idempotency_key", name="runs_idempotency"),
    )
    op.create_index("runs_thread", "runs", ["key", "created_ms"])
    op.create_index("runs_status", "runs", ["status"])
    op.create_table(
        "run_frames",
        sa.Column("run_id", sa.String(34), sa.ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("first", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("frames", sa.Text, nullable=False),
    )
    op.create_table(
        "slots",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("thread_id", sa.Text, nullable=False),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("run_id", sa.String(34), nullable=True),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("cancelled", sa.Boolean, nullable=False),
    )
    op.create_index("slots_owner", "slots", ["owner"])
    op.create_table(
        "handoffs",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("thread_id", sa.Text, nullable=False),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
    )
