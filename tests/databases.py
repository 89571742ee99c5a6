"""The databases that tests run on: SQLite in a folder of the test's, and PostgreSQL where `B4_TEST_POSTGRES` names a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

POSTGRES = os.environ.get("B4_TEST_POSTGRES", "")

needs_postgres = pytest.mark.skipif(
    not POSTGRES and not os.environ.get("B4_TEST_SMOKE_E2E"),
    reason="B4_TEST_POSTGRES names no server (a URL such as postgresql://user@host/database)",
)

BOTH = [pytest.param("sqlite"), pytest.param("postgres", marks=needs_postgres)]


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database, which is gone afterwards."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'b4.sqlite'}"
        return
    import psycopg
    from sqlalchemy import make_url

    name = f"b4_test_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
