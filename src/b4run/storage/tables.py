"""The schema. A change here needs a step in `migrations/versions/`; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text

HEAD = "0002"
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

installation = Table(
    "installation",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("installation_id", String(36), nullable=False),
)
"""One row: who made the workspaces that this database knows."""

sources = Table(
    "sources",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("files", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("json_bytes", BigInteger, nullable=False),
    Column("stored_ms", BigInteger, nullable=False),
    Column("uploaded_ms", BigInteger, nullable=True),
)
"""Verified sources by content. `json_bytes` is the size of the canonical JSON, which quotas count; an upload has `uploaded_ms`."""

source_rows = Table(
    "source_rows",
    metadata,
    Column("digest", String(64), ForeignKey("sources.digest", ondelete="CASCADE"), primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""Manifest (part 0) and file bytes (part 1) of a source, in rows of at most 1 MiB."""

workspaces = Table(
    "workspaces",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("thread_id", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("source_digest", String(64), ForeignKey("sources.digest"), nullable=False),
    Column("intent", Text, nullable=False),
    Column("ready", Text, nullable=True),
    Column("changed_ms", BigInteger, nullable=False),
    Index("workspaces_source", "source_digest"),
    Index("workspaces_state", "state"),
)
"""Managed workspaces by thread. `key` is a digest of the thread's id, which may be too long to index."""

thread_sandboxes = Table(
    "thread_sandboxes",
    metadata,
    Column("key", String(64), ForeignKey("workspaces.key", ondelete="CASCADE"), primary_key=True),
    Column("payload", Text, nullable=False),
)
"""What a thread's own resolver decided, in canonical JSON."""
