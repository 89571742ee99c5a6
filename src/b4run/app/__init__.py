"""An app: a folder with `b4_config.py` and `app/<route>/agent.py`, opened and used from Python without a server."""

from b4run.app.check import Report, check_app
from b4run.app.entries import AppDefective, load_routes

__all__ = ["AppDefective", "Report", "check_app", "load_routes"]
