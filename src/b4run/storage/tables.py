"""The schema. A change here needs a step in `migrations/versions/`; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text, UniqueConstraint

HEAD = "0003"
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
    Column("expires_ms", BigInteger, nullable=True),
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

source_uploaders = Table(
    "source_uploaders",
    metadata,
    Column("digest", String(64), ForeignKey("sources.digest", ondelete="CASCADE"), primary_key=True),
    Column("uploader", String(64), primary_key=True),
    Column("stamp", Text, nullable=True),
    Column("bytes", BigInteger, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Index("source_uploaders_uploader", "uploader"),
)
"""Who uploaded a source: `uploader` is a digest of the stamp that the access policy gave them, empty without one."""

staged = Table(
    "staged",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("thread_id", Text, nullable=False),
    Column("source_digest", String(64), ForeignKey("sources.digest"), nullable=False),
    Column("reference", Text, nullable=False),
    Index("staged_source", "source_digest"),
)
"""Uploaded workspaces that threads were created with and have not been given yet."""

threads = Table(
    "threads",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("thread_id", Text, nullable=False),
    Column("nonce", String(32), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("access", Text, nullable=True),
    Column("status", String(16), nullable=False),
    Column("reason", Text, nullable=True),
    Column("route", Text, nullable=True),
    Column("parked_route", Text, nullable=True),
    Column("deleting", Boolean, nullable=False),
    Index("threads_updated", "updated_ms", "key"),
    Index("threads_status", "status"),
)
"""Conversations. `metadata` is the client's, `access` the policy's stamp; the routes are the server's own and no client's to write."""

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(34), primary_key=True),
    Column("key", String(64), ForeignKey("threads.key", ondelete="CASCADE"), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("route", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("owner", String(32), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("started_ms", BigInteger, nullable=True),
    Column("ended_ms", BigInteger, nullable=True),
    Column("outcome", Text, nullable=True),
    Column("request", String(64), nullable=False),
    Column("idempotency_key", String(255), nullable=True),
    UniqueConstraint("key", "idempotency_key", name="runs_idempotency"),
    Index("runs_thread", "key", "created_ms"),
    Index("runs_status", "status"),
)
"""Turns, one row each. `request` is a digest of what was asked, so that a repeated key with another request is recognised."""

run_frames = Table(
    "run_frames",
    metadata,
    Column("run_id", String(34), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("last", Integer, nullable=False),
    Column("frames", Text, nullable=False),
)
"""What runs told, in batches, so that any process can go on telling it."""

slots = Table(
    "slots",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("thread_id", Text, nullable=False),
    Column("token", String(32), nullable=False),
    Column("owner", String(32), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("run_id", String(34), nullable=True),
    Column("expires_ms", BigInteger, nullable=False),
    Column("cancelled", Boolean, nullable=False),
    Index("slots_owner", "owner"),
)
"""Who has a thread to itself now: a lease that its owner keeps alive. Times are the database's, so processes need not agree on theirs."""

handoffs = Table(
    "handoffs",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("thread_id", Text, nullable=False),
    Column("asked_ms", BigInteger, nullable=False),
)
"""Threads whose idle sandbox another process asks for."""
