"""One connection to a cluster's API server: every call bounded, every refusal typed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import ClientError, ClientTimeout, WSServerHandshakeError
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from b4run.errors import B4Error
from b4run.sandbox.guest.channel import ChannelClosed
from b4run.sandbox.providers.kubernetes.exec_stream import PROTOCOLS, ExecStream

_CALL_SECONDS: Final = 30.0
_EXEC_SECONDS: Final = 10.0
_HEARTBEAT_SECONDS: Final = 30.0
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_AUTH: Final = ("BearerToken",)
_TOKEN: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
PODS, CLAIMS, POLICIES = "pods", "persistentvolumeclaims", "networkpolicies"
_GROUPS: Final = {PODS: "/api/v1", CLAIMS: "/api/v1", POLICIES: "/apis/networking.k8s.io/v1"}


class ClusterUnreachable(B4Error):
    """The Kubernetes API server did not answer: {reason}"""

    code = "B4_E2001"
    hint = "Check the cluster and the credentials: `kubectl version` with the same kubeconfig and context; `b4 doctor` tells more."


class ClusterRefused(B4Error):
    """The Kubernetes API server refused to {action}: {reason}"""

    code = "B4_E2001"

    @property
    def status(self) -> int:
        """The API server's HTTP status."""
        return int(self.fields["status"])


class Cluster:
    """The few calls the provider makes, in one namespace. Reads its credentials at the first call, in the running loop.

    They are those of the Pod it runs in, unless `kubeconfig` or `KUBECONFIG` names a file.
    """

    def __init__(self, namespace: str, kubeconfig: str | None = None, context: str | None = None) -> None:
        self.namespace = namespace
        self._kubeconfig, self._context = kubeconfig, context
        self._client: ApiClient | None = None
        self._opening = asyncio.Lock()

    async def client(self) -> ApiClient:
        async with self._opening:
            if self._client is None:
                configuration = Configuration()
                # Each sandbox keeps a connection of its own open.
                configuration.connection_pool_maxsize = 0
                configuration.debug = False
                try:
                    if self._kubeconfig is None and self._context is None and not os.environ.get("KUBECONFIG") and _TOKEN.exists():
                        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                    else:
                        await load_kube_config(self._kubeconfig, self._context, configuration)
                    self._client = ApiClient(configuration)
                except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
                    said = str(error).partition("\n")[0][:200]
                    raise ClusterUnreachable(reason=f"no usable credentials ({said or type(error).__name__})") from error
            return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def call(
        self,
        action: str,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        content_type: str | None = None,
    ) -> dict[str, Any]:
        """Make one call of the API and return its answer. Raises: ClusterUnreachable, ClusterRefused."""
        client = await self.client()
        headers = {"Accept": "application/json"} | ({} if content_type is None else {"Content-Type": content_type})
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                answer = await client.call_api(
                    path,
                    method,
                    query_params=list(query),
                    header_params=headers,
                    body=body,
                    response_types_map=dict.fromkeys((200, 201, 202), "object"),
                    auth_settings=list(_AUTH),
                    _return_http_data_only=True,
                )
        except TimeoutError as error:
            raise ClusterUnreachable(reason=f"no answer within {_CALL_SECONDS:g} s to {action}") from error
        except ApiException as error:
            raise ClusterRefused(action=action, reason=_said(error), status=error.status or 0) from error
        except (ClientError, OSError) as error:
            raise ClusterUnreachable(reason=f"the connection broke while it should {action}") from error
        return dict(answer or {})

    async def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return a resource, or None where there is none."""
        try:
            return await self.call(f"look up {_one(kind)}", "GET", self._path(kind, name))
        except ClusterRefused as refusal:
            if refusal.status == _NOT_FOUND:
                return None
            raise

    async def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Make a resource and return it; None when there is one of that name."""
        try:
            return await self.call(f"make {_one(kind)}", "POST", self._path(kind), body=body)
        except ClusterRefused as refusal:
            if refusal.status == _CONFLICT:
                return None
            raise

    async def replace(self, kind: str, name: str, body: dict[str, Any]) -> None:
        await self.call(f"change {_one(kind)}", "PUT", self._path(kind, name), body=body)

    async def annotate(self, kind: str, name: str, annotations: dict[str, str | None]) -> None:
        """Set annotations; None removes one."""
        body = {"metadata": {"annotations": annotations}}
        await self.call(f"mark {_one(kind)}", "PATCH", self._path(kind, name), body=body, content_type="application/merge-patch+json")

    async def delete(self, kind: str, name: str, *, grace_s: int | None = None, uid: str | None = None) -> None:
        """Ask for the end of a resource; one that is not there, or with `uid` is another by now, is fine."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self.call(f"remove {_one(kind)}", "DELETE", self._path(kind, name), body=body)
        except ClusterRefused as refusal:
            if refusal.status != _NOT_FOUND and not (uid is not None and refusal.status == _CONFLICT):
                raise

    async def list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """Return all resources that a label selector names."""
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            query = [("labelSelector", selector), ("limit", "500"), *([("continue", more)] if more else [])]
            page = await self.call(f"list {kind}", "GET", self._path(kind), query=query)
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found

    async def watch(self, kind: str, selector: str, on_open: Callable[[], None]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield changes of resources from now on, until the server ends the stream; `on_open` is called when it has begun."""
        client = await self.client()
        query = [("labelSelector", selector), ("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", "300")]
        url = f"{client.configuration.host}{self._path(kind)}?{urlencode(query)}"
        rest = client.rest_client
        try:
            async with rest.pool_manager.get(
                url,
                headers=await self._headers(client),
                timeout=ClientTimeout(sock_connect=_EXEC_SECONDS, sock_read=330),
                proxy=rest.proxy,
                server_hostname=rest.server_hostname,
            ) as response:
                if response.status != 200:
                    raise ClusterRefused(action=f"tell changes of {kind}", reason=response.reason or "", status=response.status)
                on_open()
                async for line in response.content:
                    yield json.loads(line)
        except (ClientError, OSError, ValueError) as error:
            raise ClusterUnreachable(reason="the stream of changes broke") from error

    async def exec(self, pod: str, container: str, command: Sequence[str]) -> ExecStream:
        """Start a program in a running container and return its streams.

        Raises:
            ClusterRefused: it cannot be started, for instance since the container does not run yet.
            ClusterUnreachable: the API server does not answer.
        """
        client = await self.client()
        rest = client.rest_client
        wanted = (("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("tty", "false"))
        query = urlencode([("container", container), *(("command", part) for part in command), *wanted])
        url = f"{client.configuration.host}{self._path(PODS, pod)}/exec?{query}"
        action = "start a program in a Pod"
        try:
            async with asyncio.timeout(_EXEC_SECONDS):
                socket = await rest.pool_manager.ws_connect(
                    url.replace("http", "ws", 1),
                    protocols=PROTOCOLS,
                    headers=await self._headers(client),
                    heartbeat=_HEARTBEAT_SECONDS,
                    max_msg_size=16 * 1024 * 1024,
                    proxy=rest.proxy,
                    server_hostname=rest.server_hostname,
                )
        except TimeoutError as error:
            raise ClusterUnreachable(reason=f"no answer within {_EXEC_SECONDS:g} s to {action}") from error
        except WSServerHandshakeError as error:
            raise ClusterRefused(action=action, reason=error.message, status=error.status) from error
        except (ClientError, OSError) as error:
            raise ClusterUnreachable(reason=f"the connection broke while it should {action}") from error
        return ExecStream(socket)

    async def run(self, pod: str, container: str, command: Sequence[str], *, stdin: bytes = b"") -> bytes:
        """Run a short program in a container and return what it printed, at most a mebibyte.

        Raises:
            ClusterRefused: it cannot be started, or failed.
            ClusterUnreachable: the API server does not answer, or the program does not end in time.
        """
        stream = await self.exec(pod, container, command)
        printed = bytearray()
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                if stdin:
                    await stream.send(stdin)
                while len(printed) < 1024 * 1024:
                    printed += await stream.receive()
        except ChannelClosed as closed:
            if not stream.told_end:
                raise ClusterUnreachable(reason="the connection broke while a program ran in a Pod") from closed
            if stream.failure is not None:
                words = " ".join(stream.complaint.decode(errors="replace").split())
                raise ClusterRefused(action="run a program in a Pod", reason=words or stream.failure, status=0) from closed
        except TimeoutError as error:
            raise ClusterUnreachable(reason=f"a program in a Pod did not end within {_CALL_SECONDS:g} s") from error
        finally:
            await stream.close()
        return bytes(printed)

    async def _headers(self, client: ApiClient) -> dict[str, str]:
        headers: dict[str, str] = {}
        await client.update_params_for_auth(headers, [], list(_AUTH))
        return headers

    def _path(self, kind: str, name: str | None = None) -> str:
        path = f"{_GROUPS[kind]}/namespaces/{self.namespace}/{kind}"
        return path if name is None else f"{path}/{name}"


def _one(kind: str) -> str:
    return {PODS: "a Pod", CLAIMS: "a claim", POLICIES: "a NetworkPolicy"}[kind]


def _said(error: ApiException) -> str:
    """What the API server gives as its reason, which is a `Status`."""
    try:
        return str(json.loads(error.body or b"")["message"])[:500]
    except (KeyError, TypeError, ValueError):
        return str(error.reason or f"status {error.status}")
