"""The host's side of the guest: frames, the connection, and the backends over it. What a provider needs is named here."""

from __future__ import annotations

from b4run.sandbox.guest.binary import guest_binary
from b4run.sandbox.guest.channel import Channel
from b4run.sandbox.guest.client import GuestClient
from b4run.sandbox.guest.handle import GuestSandbox
from b4run.sandbox.guest.reader import GuestReader
from b4run.sandbox.guest.stream_channel import SocketChannel

__all__ = ["Channel", "GuestClient", "GuestReader", "GuestSandbox", "SocketChannel", "guest_binary"]
