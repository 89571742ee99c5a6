"""Finds an agent's chat model, and asks it again when a call failed for a passing reason."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langgraph.errors import GraphBubbleUp

from b4run.agents.definition import Retry
from b4run.agents.history import repaired
from b4run.errors import B4Error, ModelFailed, ModelProviderMissing, ModelUnknown

_PASSING_STATUS = frozenset({408, 409, 425, 429})
_LONGEST_WAIT_S = 10.0
_JITTER_S = 0.5


def resolve_model(model: Any) -> BaseChatModel:
    """Return the chat model that a definition names, or is.

    Raises:
        ModelProviderMissing: its package is not installed.
        ModelUnknown: no provider can be told from the name, or it refuses its settings.
    """
    if not isinstance(model, str):
        return model  # type: ignore[no-any-return]
    try:
        return init_chat_model(model)
    except ImportError as error:
        raise ModelProviderMissing(model=model, package=_package(error)) from error
    except Exception as error:
        raise ModelUnknown(model=model, reason=_first_line(error)) from error


class ModelCalls(AgentMiddleware[Any, Any, Any]):
    """Shows the model a history in which every tool call has an answer, and repeats single calls. Tools are not its business."""

    def __init__(self, retry: Retry) -> None:
        super().__init__()
        self._retry = retry

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        request = request.override(messages=repaired(request.messages))
        attempt = 1
        while True:
            try:
                return await handler(request)
            except (B4Error, GraphBubbleUp):
                raise
            except Exception as error:
                wait = _wait_before_next(error, attempt, self._retry)
                if wait is None:
                    raise ModelFailed(attempts=attempt, reason=f"{type(error).__name__}: {_first_line(error)}") from error
            await asyncio.sleep(wait)
            attempt += 1


def _wait_before_next(error: Exception, attempt: int, retry: Retry) -> float | None:
    """Return the seconds to wait, or None when it makes no sense to ask again."""
    if attempt >= retry.max_attempts or not _passing(error):
        return None
    asked = _retry_after(error)
    if asked is not None:
        return asked if asked <= _LONGEST_WAIT_S else None
    backoff = retry.base_delay_ms / 1_000 * 2.0 ** (attempt - 1)
    return min(backoff + random.uniform(0, min(_JITTER_S, backoff)), _LONGEST_WAIT_S)


def _passing(error: Exception) -> bool:
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in _PASSING_STATUS or status >= 500
    return isinstance(error, (ConnectionError, TimeoutError)) or type(error).__name__ in ("APIConnectionError", "APITimeoutError")


def _retry_after(error: Exception) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    try:
        return max(0.0, float(headers["retry-after"])) if headers else None
    except (KeyError, TypeError, ValueError):
        return None


def _package(error: ImportError) -> str:
    """LangChain names the package in its message: `… requires the langchain-openai package …`."""
    words = [word.strip("`'\".,") for word in str(error).split()]
    return next((word for word in words if word.startswith("langchain-")), (error.name or "langchain").split(".")[0].replace("_", "-"))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
