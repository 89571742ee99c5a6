"""Permissions that people gave."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("pattern", sa.Text, nullable=False),
        sa.Column("exact", sa.Boolean, nullable=False),
        sa.Column("thread_id", sa.Text, nullable=True),
        sa.Column("granted_by", sa.Text, nullable=False),
        sa.Column("granted_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("grants_thread", "grants", ["thread_id"])
