"""What operators watch: Prometheus metrics, with the extra `metrics`; without it, nothing."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from b4run.server.refusals import not_found
from b4run.server.service import Service
from b4run.threads.runs import LiveRun

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800)


class Metrics:
    """The process's figures in a registry of its own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self.requests = Histogram(
            "b4run_request_seconds", "Requests, to their first byte", ("method", "path", "status"), registry=self.registry, buckets=_SECONDS
        )
        self.runs = Histogram(
            "b4run_run_seconds", "Runs, from their start to their end", ("route", "status"), registry=self.registry, buckets=_SECONDS
        )
        self.waits = Histogram(
            "b4run_slot_wait_seconds", "What runs waited for their thread", ("route",), registry=self.registry, buckets=_SECONDS
        )
        self.refusals = Counter("b4run_refusals", "Refused requests", ("status",), registry=self.registry)
        self.active = Gauge("b4run_runs_active", "Runs that wait or are under way", registry=self.registry)
        self.slots = Gauge("b4run_slots_held", "Threads that this process has to itself", registry=self.registry)
        self.sandboxes = Gauge("b4run_sandboxes_warm", "Sandboxes with compute in this process", registry=self.registry)
        self.deletions = Gauge("b4run_deletions_unfinished", "Threads whose removal is being retried", registry=self.registry)

    def watch(self, service: Service) -> None:
        """Ask the service for its figures whenever they are collected."""
        self.active.set_function(lambda: service.runs.active)
        self.slots.set_function(lambda: service.slots.held)
        self.sandboxes.set_function(lambda: len(service.app.sandboxes.status()))
        self.deletions.set_function(lambda: len(service.deletion.failing))
        service.runs.on_end.append(self._ended)

    def _ended(self, run: LiveRun) -> None:
        if run.began_s is not None:
            self.waits.labels(run.row.route).observe(run.began_s - run.asked_s)
            self.runs.labels(run.row.route, run.status.value).observe(time.monotonic() - run.began_s)


def metrics_of(service: Service) -> Metrics | None:
    """Return the service's metrics; None without the extra."""
    try:
        metrics = Metrics()
    except ImportError:
        return None
    metrics.watch(service)
    return metrics


class Observed:
    """ASGI middleware: times every request by its route's pattern, never by the ids in its path."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                path = scope.get("path_pattern", "other")
                self._metrics.requests.labels(scope["method"], path, status).observe(time.monotonic() - began)
                if status >= 400:
                    self._metrics.refusals.labels(status).inc()
            await send(message)

        await self._app(scope, receive, observed)


async def metrics(request: Request) -> Response:
    """Serve the figures as Prometheus reads them."""
    found: Metrics | None = request.app.state.metrics
    if found is None:
        return not_found().response()
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return Response(generate_latest(found.registry), headers={"content-type": CONTENT_TYPE_LATEST})
