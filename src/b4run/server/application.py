"""The ASGI application: every endpoint by path and method, in front of one service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from b4run.config import Cors
from b4run.server import health, openapi, permissions, reading, runs, sources, threads
from b4run.server.refusals import Refusal, not_found
from b4run.server.service import Service
from b4run.server.telemetry import Observed, metrics, metrics_of

Handler = Callable[[Request], Awaitable[Response]]

ENDPOINTS: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/healthz", health.healthz),
    ("GET", "/readyz", health.readyz),
    ("POST", "/threads", threads.create),
    ("GET", "/threads", threads.list_threads),
    ("GET", "/threads/{thread_id}", threads.get),
    ("PATCH", "/threads/{thread_id}", threads.update),
    ("DELETE", "/threads/{thread_id}", threads.delete),
    ("GET", "/threads/{thread_id}/state", threads.state),
    ("GET", "/threads/{thread_id}/pending_interrupts", threads.pending_interrupts),
    ("POST", "/threads/{thread_id}/runs/wait", runs.wait),
    ("POST", "/threads/{thread_id}/runs/stream", runs.stream),
    ("GET", "/threads/{thread_id}/runs/stream", runs.attach),
    ("GET", "/threads/{thread_id}/runs", runs.list_runs),
    ("GET", "/threads/{thread_id}/runs/{run_id}", runs.get_run),
    ("POST", "/threads/{thread_id}/runs/{run_id}/cancel", runs.cancel_run),
    ("POST", "/threads/{thread_id}/resume", runs.resume),
    ("POST", "/threads/{thread_id}/cancel", runs.cancel),
    ("GET", "/threads/{thread_id}/permissions", permissions.list_grants),
    ("DELETE", "/threads/{thread_id}/permissions/{grant_id}", permissions.revoke),
    ("POST", "/threads/{thread_id}/workspace/inspect", reading.inspect),
    ("GET", "/threads/{thread_id}/workspace/entries", reading.entries),
    ("GET", "/threads/{thread_id}/workspace/diff", reading.diff),
    ("GET", "/threads/{thread_id}/workspace/archive", reading.archive),
    ("GET", "/threads/{thread_id}/workspace/files/{path:path}", reading.file),
    ("GET", "/workspace/sources", sources.list_own),
    ("PUT", "/workspace/sources/{digest}", sources.put),
    ("GET", "/workspace/sources/{digest}", sources.get),
    ("DELETE", "/workspace/sources/{digest}", sources.delete),
    ("GET", "/openapi.json", openapi.openapi),
    ("GET", "/metrics", metrics),
)


def create_application(service: Service) -> Starlette:
    """Return the application in front of an open service."""
    cors = service.app.config.server.cors
    figures = metrics_of(service)
    middleware = [] if figures is None else [Middleware(Observed, metrics=figures)]
    application = Starlette(
        routes=_routes(),
        middleware=middleware + ([] if cors is None else [_cors(cors)]),
        exception_handlers={HTTPException: _http_refusal},
    )
    application.state.service = service
    application.state.metrics = figures
    return application


def _routes() -> list[Route]:
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in ENDPOINTS:
        by_path.setdefault(path, {})[method] = handler
    # `/runs/wait` and `/runs/stream` before `/runs/{run_id}`: of paths that match both, the literal one is meant.
    ordered = sorted(by_path.items(), key=lambda item: "{run_id}" in item[0])
    return [Route(path, _by_method(path, handlers), methods=list(handlers)) for path, handlers in ordered]


def _by_method(path: str, handlers: dict[str, Handler]) -> Handler:
    async def handle(request: Request) -> Response:
        request.scope["path_pattern"] = path
        # Starlette answers HEAD where it answers GET.
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


def _cors(cors: Cors) -> Middleware:
    everywhere = cors.origins == "*"
    return Middleware(
        CORSMiddleware,
        allow_origins=["*"] if everywhere else [origin.lower().rstrip("/") for origin in cors.origins],
        allow_credentials=cors.credentials,
        allow_methods=list(cors.methods),
        allow_headers=["*"] if cors.headers is None else list(cors.headers),
        expose_headers=list(cors.expose_headers),
        max_age=cors.max_age_s,
    )


async def _http_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Refusal(405, "method_not_allowed", f"This path takes {allowed}.", headers={"allow": allowed}).response()
    return not_found().response()
