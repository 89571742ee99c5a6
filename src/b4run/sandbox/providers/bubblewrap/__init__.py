"""The embedded provider: bubblewrap on this host, without a daemon and without an image."""

from b4run.sandbox.providers.bubblewrap.provider import BubblewrapProvider, bubblewrap_sandbox

__all__ = ["BubblewrapProvider", "bubblewrap_sandbox"]
