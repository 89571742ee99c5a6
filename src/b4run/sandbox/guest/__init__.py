"""The host's side of the guest: frames, the connection, and the backends over it."""
