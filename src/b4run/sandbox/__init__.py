"""Sandboxes: one per conversation thread; its compute dies when idle, its files stay until it is destroyed."""

from b4run.sandbox.scope import resource_id

__all__ = ["resource_id"]
