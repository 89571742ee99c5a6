"""The `b4` command. `main.py` is imported by every call, so it imports only what its help needs; see decision 0003."""
