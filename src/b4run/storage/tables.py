"""The schema. A change here needs a step in `migrations/versions/`; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

HEAD = "0001"
"""The newest migration, so that a current database is recognised without loading Alembic."""

metadata = MetaData()

grants = Table(
    "grants",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("key", String(32), nullable=False),
    Column("pattern", Text, nullable=False),
    Column("exact", Boolean, nullable=False),
    Column("thread_id", Text, nullable=True),
    Column("granted_by", Text, nullable=False),
    Column("granted_ms", BigInteger, nullable=False),
    Index("grants_thread", "thread_id"),
    sqlite_autoincrement=True,
)
"""Permissions that people gave. `thread_id` is null for the whole app; `digest` makes a grant unique: a pattern is too long to index."""
