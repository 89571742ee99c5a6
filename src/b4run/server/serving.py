"""Serving an app on a port until a signal: boot, listen, drain, release."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn

from b4run.app.opening import App
from b4run.server.application import create_application
from b4run.server.service import DRAIN_SECONDS, Service, open_service

_CLOSE_SECONDS = 5
"""What connections have after the drain."""

logger = logging.getLogger("b4run.server")


class Listener(uvicorn.Server):
    """A server that lets runs finish before it cuts connections."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._service.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Signals are ours: see `serve`."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises: OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2_048)
    except OSError:
        listening.close()
        raise
    listening.set_inheritable(False)
    return listening


@asynccontextmanager
async def listening(service: Service, sock: socket.socket) -> AsyncIterator[Listener]:
    """Serve on a bound socket for the length of the block; at its end runs are drained."""
    config = uvicorn.Config(
        create_application(service),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        timeout_keep_alive=75,
    )
    server = Listener(config, service)
    serving = asyncio.create_task(server.serve([sock]))
    try:
        while not server.started:
            if serving.done():
                await serving
                raise RuntimeError("the server did not start")
            await asyncio.sleep(0.005)
        yield server
    finally:
        server.should_exit = True
        await serving


async def serve(
    app: App, sock: socket.socket, *, drain_s: float = DRAIN_SECONDS, on_ready: Callable[[Service], None] = lambda _: None
) -> None:
    """Serve an open app until SIGINT or SIGTERM; a second one ends runs at once instead of waiting for them."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with open_service(app, drain_s=drain_s) as service, listening(service, sock):

        def on_signal() -> None:
            if stop.is_set():
                service.runs.end_all()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        on_ready(service)
        await stop.wait()
        logger.info("draining", extra={"event": "server.draining", "runs": service.runs.active})
