"""One connection to a Docker Engine: every call bounded, every refusal typed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar

from aiodocker import Docker
from aiodocker.exceptions import DockerContextInvalidError, DockerError
from aiodocker.execs import Exec
from aiodocker.stream import Stream
from aiohttp import ClientError, ClientTimeout

from b4run.errors import B4Error

T = TypeVar("T")

_CALL_SECONDS: Final = 60.0
_NOT_FOUND: Final = 404
_UNREACHABLE: Final = 900
"""The status aiodocker gives to a connection that failed."""


class EngineUnreachable(B4Error):
    """The Docker Engine did not answer: {reason}"""

    code = "B4_E2001"
    hint = "Start the daemon, or point DOCKER_HOST or the Docker context at one that runs; `b4 doctor` tells more."


class EngineRefused(B4Error):
    """The Docker Engine refused to {action}: {reason}"""

    code = "B4_E2001"

    @property
    def status(self) -> int:
        """The engine's HTTP status."""
        return int(self.fields["status"])


class Engine:
    """The few engine calls the provider makes. Opens its client at the first call, in the running loop."""

    def __init__(self, url: str | None = None, context: str | None = None) -> None:
        self._url, self._context = url, context
        self._client: Docker | None = None

    @property
    def client(self) -> Docker:
        if self._client is None:
            try:
                self._client = Docker(url=self._url, context=self._context, timeout=ClientTimeout(sock_connect=10))
            except DockerContextInvalidError as error:
                raise EngineUnreachable(reason=f"there is no usable Docker context {error.context_name!r}") from error
            except (DockerError, ValueError, AssertionError, OSError) as error:
                raise EngineUnreachable(reason="no engine is configured here and no socket was found") from error
        return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def call(self, action: str, awaitable: Awaitable[T], *, seconds: float = _CALL_SECONDS) -> T:
        """Await one engine call. Raises: EngineUnreachable, EngineRefused."""
        try:
            async with asyncio.timeout(seconds):
                return await awaitable
        except TimeoutError as error:
            raise EngineUnreachable(reason=f"no answer within {seconds:g} s to {action}") from error
        except DockerError as error:
            if error.status == _UNREACHABLE:
                raise EngineUnreachable(reason="the connection failed") from error
            raise EngineRefused(action=action, reason=error.message, status=error.status) from error
        except (ClientError, OSError) as error:
            raise EngineUnreachable(reason=f"the connection broke while it should {action}") from error

    async def get(self, action: str, path: str, *, params: Any = None) -> Any:
        return await self.call(action, self.client._query_json(path, "GET", params=params))

    async def post(self, action: str, path: str, *, params: Any = None, body: Any = None) -> Any:
        return await self.call(action, self.client._query_json(path, "POST", params=params, data=body))

    async def find(self, action: str, path: str) -> dict[str, Any] | None:
        """Return what stands at `path`, or None where there is nothing."""
        try:
            found: dict[str, Any] = await self.get(action, path)
        except EngineRefused as refusal:
            if refusal.status == _NOT_FOUND:
                return None
            raise
        return found

    async def plain(self, action: str, path: str, method: str, *, params: Any = None, data: Any = None, headers: Any = None) -> Any:
        """Make a call whose answer has no body; return its headers."""

        async def asked() -> Any:
            async with self.client._query(path, method, params=params, data=data, headers=headers) as response:
                await response.read()
                return response.headers

        return await self.call(action, asked())

    async def upload(self, container: str, folder: str, archive: bytes) -> None:
        """Unpack a tar archive in a container, running or not."""
        headers = {"Content-Type": "application/x-tar"}
        await self.plain(
            "upload a file", f"containers/{container}/archive", "PUT", params={"path": folder}, data=io.BytesIO(archive), headers=headers
        )

    async def path_stat(self, container: str, path: str) -> str | None:
        """Return what the engine says of a file in a container (base64 of JSON), or None when it is not there."""
        try:
            headers = await self.plain("look at a file", f"containers/{container}/archive", "HEAD", params={"path": path})
        except EngineRefused as refusal:
            if refusal.status == _NOT_FOUND:
                return None
            raise
        except ValueError:
            # aiodocker parses the body of an error, and an answer to HEAD has none.
            return None
        return str(headers["X-Docker-Container-Path-Stat"])

    async def remove_container(self, name: str) -> None:
        """Kill and remove a container; one that is not there, or is just being removed, is fine."""
        await self._gone("remove a container", f"containers/{name}", {"force": "true", "v": "false"})

    async def remove_volume(self, name: str) -> None:
        """Remove a volume; one that is not there is fine. Raises: EngineRefused: a container uses it."""
        await self._gone("remove a volume", f"volumes/{name}", {})

    async def _gone(self, action: str, path: str, params: dict[str, str]) -> None:
        try:
            await self.plain(action, path, "DELETE", params=params)
        except EngineRefused as refusal:
            if refusal.status != _NOT_FOUND and "already in progress" not in refusal.message:
                raise

    async def start(self, container: str) -> None:
        await self.plain("start a container", f"containers/{container}/start", "POST")

    async def remove_image(self, name: str) -> None:
        """Remove an image; one that is not there is fine. Raises: EngineRefused: a container uses it."""
        await self._gone("remove an image", f"images/{name}", {})

    async def list_containers(self, filters: dict[str, list[str]], *, running: bool = True) -> list[dict[str, Any]]:
        """Return the containers that match, only those that run unless told otherwise."""
        parameters = {"filters": json.dumps(filters), "all": "false" if running else "true"}
        return list(await self.get("list containers", "containers/json", params=parameters))

    async def list_images(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        return list(await self.get("list images", "images/json", params={"filters": json.dumps(filters)}))

    async def list_volumes(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        found = await self.get("list volumes", "volumes", params={"filters": json.dumps(filters)})
        return list(found["Volumes"] or ())

    async def events(self, filters: dict[str, list[str]], on_open: Callable[[], None]) -> AsyncGenerator[bytes, None]:
        """Yield the engine's events, a line of JSON each, until it ends the stream; `on_open` is called when it has begun."""
        try:
            async with self.client._query("events", "GET", params={"filters": json.dumps(filters)}) as response:
                with contextlib.closing(response):
                    on_open()
                    async for line in response.content:
                        yield line
        except DockerError as error:
            raise EngineRefused(action="tell its events", reason=error.message, status=error.status) from error
        except (ClientError, OSError, ValueError) as error:
            raise EngineUnreachable(reason="the stream of its events broke") from error

    async def attach(self, container: str) -> Stream:
        """Return the standard streams of a container that is not started yet."""
        stream = self.client.containers.container(container).attach(stdin=True, stdout=True, stderr=True)
        await self.call("attach to a container", stream._init())
        return stream

    async def exec_stream(self, container: str, command: list[str]) -> Stream:
        """Start a program in a running container and return its streams."""
        body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Tty": False, "Cmd": command}
        made = await self.post("start a program in a container", f"containers/{container}/exec", body=body)
        stream = Exec(self.client, made["Id"], tty=False).start()
        await self.call("start a program in a container", stream._init())
        return stream
