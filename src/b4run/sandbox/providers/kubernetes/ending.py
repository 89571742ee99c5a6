"""Why a Pod's guest is gone, and why a Pod does not start, as the cluster tells it."""

from __future__ import annotations

from typing import Any

from b4run.sandbox.guest.channel import ChannelClosed
from b4run.sandbox.providers.kubernetes.launch import CARRIER, SANDBOX

_NO_GUEST, _OPEN_NETWORK = 78, 77
"""Exit codes of the sandbox's container: nobody brought the guest; the guest found the network open."""
_HOPELESS = {
    "ErrImageNeverPull": "the image is not on the node, and its pull policy forbids to pull it",
    "InvalidImageName": "the image's name is not valid",
    "ErrImagePull": "the image cannot be pulled",
    "ImagePullBackOff": "the image cannot be pulled",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be run",
}
_WORDS = 300


def why_gone(pod: dict[str, Any] | None, uid: str, memory_mb: int | None) -> ChannelClosed | None:
    """Return what happened to a Pod that a guest was in; None: it looks alive."""
    if pod is None:
        return ChannelClosed("its Pod was removed")
    if pod["metadata"]["uid"] != uid:
        return ChannelClosed("its Pod was replaced")
    status = pod.get("status") or {}
    ended = _ended(pod, SANDBOX)
    if ended is not None:
        if ended.get("reason") == "OOMKilled":
            limit = "the memory limit" if memory_mb is None else f"its memory limit of {memory_mb} MiB"
            return ChannelClosed(f"{limit} was passed", "oom")
        if status.get("reason") == "Evicted":
            return ChannelClosed(f"its Pod was evicted: {_short(status.get('message'))}")
        return ChannelClosed(f"its container ended with exit code {ended.get('exitCode')}")
    if status.get("phase") in ("Failed", "Succeeded"):
        reason = status.get("reason") or status["phase"]
        return ChannelClosed(
            f"its Pod ended ({reason}): {_short(status.get('message'))}" if status.get("message") else f"its Pod ended ({reason})"
        )
    if pod["metadata"].get("deletionTimestamp"):
        return ChannelClosed("its Pod is being removed")
    return None


def why_not_started(pod: dict[str, Any] | None) -> str | None:
    """Return why a Pod will not start by itself; None: it may."""
    if pod is None:
        return "its Pod was removed while it started"
    status = pod.get("status") or {}
    ended = _ended(pod, SANDBOX)
    if ended is not None and ended.get("exitCode") == _OPEN_NETWORK:
        return "the network stays open: the cluster does not enforce its NetworkPolicy, or the allowlist holds the API server's address"
    if ended is not None and ended.get("exitCode") == _NO_GUEST:
        return "the guest did not arrive in it"
    if ended is not None:
        return f"its container ended with exit code {ended.get('exitCode')} ({_short(ended.get('message') or ended.get('reason'))})"
    carrier = _ended(pod, CARRIER)
    if carrier is not None and carrier.get("exitCode"):
        said = _short(carrier.get("message") or carrier.get("reason"))
        return f"the container that brings the guest ended with exit code {carrier['exitCode']} ({said})"
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _HOPELESS:
            return f"{_HOPELESS[waiting['reason']]}: {_short(waiting.get('message') or container.get('image'))}"
    if status.get("phase") == "Failed":
        return f"its Pod failed ({status.get('reason') or 'without a reason'}): {_short(status.get('message'))}"
    return None


def still_waiting_for(pod: dict[str, Any] | None) -> str:
    """Return what a Pod that may yet start waits for."""
    if pod is None:
        return "it is not there yet"
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes it: {_short(condition.get('message'))}"
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            told = f": {_short(waiting['message'])}" if waiting.get("message") else ""
            return f"its container {container.get('name')} waits ({waiting['reason']}){told}"
    return "its guest does not answer yet"


def _ended(pod: dict[str, Any], container: str) -> dict[str, Any] | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == container:
            found: dict[str, Any] | None = (status.get("state") or {}).get("terminated")
            return found
    return None


def _short(text: object) -> str:
    words = " ".join(str(text or "no reason given").split())
    return words if len(words) <= _WORDS else words[: _WORDS - 1] + "…"
