"""A server to be a client of."""

from ..server.conftest import database_url, make_app, serve

__all__ = ["database_url", "make_app", "serve"]
