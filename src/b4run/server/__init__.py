"""The server: threads, runs and workspaces over HTTP, as the Agent Protocol has them.

async with open_app("my-app") as app, open_service(app) as service:
    application = create_application(service)  # ASGI
"""

from __future__ import annotations

from b4run.server.application import create_application
from b4run.server.service import Service, open_service

__all__ = ["Service", "create_application", "open_service"]
