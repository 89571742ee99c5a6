"""Endpoints of runs: begin, follow, answer, cancel, and look at those that were."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from b4run.access import Action, Operation
from b4run.agents.events import Event
from b4run.agents.inputs import messages_of
from b4run.errors import InputInvalid
from b4run.server.answers import check_answers, read_answers
from b4run.server.asking import endpoint, gated, integer, json_answer, patience, there, thread_id_of
from b4run.server.bodies import MAX_RUN_BYTES, read_object
from b4run.server.gate import iso, usable_stamp
from b4run.server.refusals import Refusal, invalid, thread_not_found
from b4run.server.service import Service
from b4run.server.streaming import event_bytes, event_stream, run_events
from b4run.server.threads import known_route, prompts_json, recheck, route_of
from b4run.storage.runs import RunRow, RunStatus
from b4run.storage.slots import SlotKind, SlotRow
from b4run.storage.threads import ThreadRow
from b4run.threads.runs import OnBusy, RunRequest, Started
from b4run.threads.state import read_state
from b4run.workspace.captured import compact

MAX_TIMEOUT_MS = 86_400_000
_LONGEST_KEY = 255
_POLL_S = 0.1
_RETRY_MS = (1_500, 2_500)
"""When a client should look again at a thread on which nothing runs; spread, so that not all come at once."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A body that begins a run."""

    route: str
    input: Any
    timeout_s: float | None
    on_busy: OnBusy


@endpoint
async def stream(request: Request, service: Service) -> Response:
    started = await _begin(request, service, Operation.RUN_STREAM)
    return event_stream(run_events(service, started.row, started.live), service)


@endpoint
async def wait(request: Request, service: Service) -> Response:
    longest = patience(request)
    started = await _begin(request, service, Operation.RUN_WAIT)
    row = await _ended(service, started, longest)
    if row is None:
        location = {"location": f"/threads/{started.row.thread_id}/runs/{started.row.run_id}"}
        answer = json_answer(run_json(started.row), 202)
        answer.headers.update(location | {"preference-applied": f"wait={longest:g}"})
        return answer
    return await _result(service, row)


async def _begin(request: Request, service: Service, operation: Operation) -> Started:
    thread_id = thread_id_of(request)
    key = _idempotency_key(request)
    body = await read_object(request, MAX_RUN_BYTES)
    asked = _asked(body)
    row = await service.app.storage.threads.find(thread_id)
    action = Action.CREATE if row is None else Action.UPDATE
    metadata: Mapping[str, Any] | None = {} if row is None else None
    stamp = await service.gate.decide(request, action, operation, thread_id=thread_id, row=row, metadata=metadata, miss=thread_not_found())
    if not known_route(service, asked.route):
        known = ", ".join(f"{route.id}#{route.kind}" for route in service.app.routes.values())
        raise Refusal(404, "route_not_found", f"There is no route {asked.route[:200]!r}; the app's routes: {known}.")
    if row is None:
        await _create(request, service, thread_id, stamp, operation)
    elif row.deleting:
        raise Refusal(409, "thread_deleting", "The thread is being deleted.")
    name = asked.route.rpartition("#")[0]

    def work() -> AsyncGenerator[Event, None]:
        return service.app.runtime.stream(name, asked.input, thread_id=thread_id)

    return await service.runs.start(
        RunRequest(thread_id, asked.route, SlotKind.RUN, _digest(body), asked.timeout_s, asked.on_busy, key), work
    )


async def _create(request: Request, service: Service, thread_id: str, stamp: Any, operation: Operation) -> None:
    """Make the thread that the run is to be on; of two who make it at once, the second uses the first one's if it may."""
    if service.staging is not None:
        await service.app.storage.uploads.detach(thread_id)
    made = await service.app.storage.threads.create(thread_id, metadata={}, access=usable_stamp(stamp))
    if made is not None:
        await recheck(request, service, made, operation)
        return
    there = await service.app.storage.threads.find(thread_id)
    await service.gate.decide(request, Action.UPDATE, operation, thread_id=thread_id, row=there, miss=thread_not_found())


@endpoint
async def resume(request: Request, service: Service) -> Response:
    key = _idempotency_key(request)
    body = await read_object(request, MAX_RUN_BYTES)
    given = read_answers(body)
    thread_id, found = await gated(request, service, Action.UPDATE, Operation.RUN_RESUME, resuming=True)
    if given.for_everybody:
        await service.gate.decide(request, Action.CREATE, Operation.PERMISSION_GRANT, resuming=True)
    row = there(found)
    if row.deleting:
        raise Refusal(409, "thread_deleting", "The thread is being deleted.")
    principal = await service.gate.principal(request)
    answers = given.by_interrupt("user" if principal is None else principal.id)
    route = _resumed_route(service, row, given.route)
    name = route.rpartition("#")[0]

    async def check() -> None:
        waiting = await read_state(service.app.checkpoints, thread_id)
        if waiting is None:
            raise thread_not_found()
        check_answers(given, waiting)

    def work() -> AsyncGenerator[Event, None]:
        return service.app.runtime.stream_resume(name, answers, thread_id=thread_id)

    run = RunRequest(thread_id, route, SlotKind.RESUME, _digest(body), idempotency_key=key)
    started = await service.runs.start(run, work, check=check)
    return event_stream(run_events(service, started.row, started.live), service)


def _resumed_route(service: Service, row: ThreadRow, named: str) -> str:
    """The prompt is answered under the route that asked, whatever the body names."""
    route = row.parked_route or row.route or named
    if not known_route(service, route):
        raise Refusal(404, "route_not_found", "The route that asked is not one of this app any more.")
    return route


@endpoint
async def cancel(request: Request, service: Service) -> Response:
    thread_id = thread_id_of(request)
    # Whatever has the thread at this moment: never a run that begins later.
    holder = await service.slots.holder(thread_id)
    _, row = await gated(request, service, Action.UPDATE, Operation.THREAD_CANCEL)
    return await _cancel(service, thread_id, row, holder)


async def _cancel(service: Service, thread_id: str, row: ThreadRow | None, holder: SlotRow | None) -> Response:
    if holder is None or holder.kind is SlotKind.DELETE or not await service.runs.cancel(holder):
        if row is None:
            raise thread_not_found()
        raise Refusal(409, "no_run_in_flight", "Nothing is under way on the thread.")
    return json_answer({"thread_id": thread_id, "status": "interrupted"})


@endpoint
async def attach(request: Request, service: Service) -> Response:
    thread_id, found = await gated(request, service, Action.READ, Operation.THREAD_ATTACH)
    row = there(found)
    route_of(service, row)
    seen = await _last_seen(request, service, thread_id)
    if seen is not None:
        run, after = seen
        return event_stream(run_events(service, run, service.runs.live(run.run_id), after=after), service)
    return event_stream(_attached(service, row), service)


async def _last_seen(request: Request, service: Service, thread_id: str) -> tuple[RunRow, int] | None:
    """Return the run and frame that `Last-Event-ID` names; None when it names nothing that is kept."""
    run_id, _, number = request.headers.get("last-event-id", "").partition("/")
    if not run_id or not (number.isascii() and number.isdigit() and len(number) < 10):
        return None
    run = await service.app.storage.runs.find(thread_id, run_id)
    return None if run is None else (run, int(number))


async def _attached(service: Service, row: ThreadRow) -> AsyncIterator[bytes]:
    """One `state` event, then the live run's frames to its end; or `done` when nothing runs."""
    found = await read_state(service.app.checkpoints, row.thread_id)
    snapshot: dict[str, Any] = {"status": row.status.value, "values": None if found is None else found.values}
    live = service.runs.on_thread(row.thread_id)
    holder = None if live is not None else await service.slots.holder(row.thread_id)
    run = live.row if live is not None else None
    if holder is not None and holder.run_id is not None:
        run = await service.app.storage.runs.find(row.thread_id, holder.run_id)
    if run is None or run.status.over:
        idle = {"live": False, "anchor": None, "run_started_at": None, "resume": False, "input": None, "turn": None}
        yield event_bytes("state", compact(snapshot | idle | {"interrupts": prompts_json(found)}))
        yield f"retry: {random.randint(*_RETRY_MS)}\n\n".encode()
        yield event_bytes("done", compact({"output": None}))
        return
    seen, turn, truncated = await _turn(service, run)
    shown = snapshot | {
        "status": "busy",
        "live": True,
        "run_id": run.run_id,
        "anchor": None if found is None else found.checkpoint_id,
        "run_started_at": iso(run.started_ms or run.created_ms),
        "resume": run.kind == SlotKind.RESUME,
        "input": None,
        "turn": turn,
        "interrupts": [],
    }
    yield event_bytes("state", compact(shown | ({"turn_truncated": True} if truncated else {})))
    async for frame in run_events(service, run, live, after=seen):
        yield frame


async def _turn(service: Service, run: RunRow) -> tuple[int, list[dict[str, Any]] | None, bool]:
    """Return the number of the last frame so far, the frames with their text joined, and whether they were too many to show."""
    live = service.runs.live(run.run_id)
    if live is not None and live.log.digest is None:
        return live.log.number, None, True
    frames = list(live.log.digest or ()) if live is not None else list(await service.app.storage.runs.told(run.run_id))
    # What ends the turn is told once, after the snapshot.
    frames = [frame for frame in frames if frame.event != "done"]
    shown: list[dict[str, Any]] = []
    for frame in frames:
        data = json.loads(frame.data)
        if frame.event == "chunk" and shown and shown[-1]["event"] == "chunk":
            shown[-1]["data"].append(data)
        else:
            shown.append({"event": frame.event, "data": [data] if frame.event == "chunk" else data})
    turn = [{"event": part["event"], "data": "".join(part["data"]) if part["event"] == "chunk" else part["data"]} for part in shown]
    return (frames[-1].number if frames else 0), turn, False


@endpoint
async def list_runs(request: Request, service: Service) -> Response:
    thread_id = await _readable(request, service)
    limit = integer(request, "limit", 100, least=1, most=1_000)
    before = None
    if (name := request.query_params.get("before")) is not None:
        before = await service.app.storage.runs.find(thread_id, name)
        if before is None:
            raise invalid("`before` is not a run of this thread.")
    rows = await service.app.storage.runs.list(thread_id, limit=limit, before=before)
    return json_answer({"runs": [run_json(row) for row in rows]})


@endpoint
async def get_run(request: Request, service: Service) -> Response:
    thread_id = await _readable(request, service)
    return json_answer(run_json(await _run(request, service, thread_id)))


@endpoint
async def cancel_run(request: Request, service: Service) -> Response:
    thread_id = thread_id_of(request)
    holder = await service.slots.holder(thread_id)
    _, row = await gated(request, service, Action.UPDATE, Operation.THREAD_CANCEL)
    run = await _run(request, service, thread_id)
    if holder is not None and holder.run_id == run.run_id:
        return await _cancel(service, thread_id, row, holder)
    if not await service.runs.withdraw(run):
        raise Refusal(409, "no_run_in_flight", "The run is over.")
    return json_answer({"thread_id": thread_id, "status": "interrupted"})


async def _readable(request: Request, service: Service) -> str:
    thread_id, row = await gated(request, service, Action.READ, Operation.THREAD_RUNS)
    there(row)
    return thread_id


async def _run(request: Request, service: Service, thread_id: str) -> RunRow:
    run = await service.app.storage.runs.find(thread_id, request.path_params["run_id"])
    if run is None:
        raise Refusal(404, "run_not_found", "The thread has no such run.")
    return run


def run_json(row: RunRow) -> dict[str, Any]:
    """Return a run as clients see it."""
    shown: dict[str, Any] = {
        "run_id": row.run_id,
        "thread_id": row.thread_id,
        "kind": row.kind,
        "route": row.route,
        "status": row.status.value,
        "created_at": iso(row.created_ms),
        "started_at": None if row.started_ms is None else iso(row.started_ms),
        "ended_at": None if row.ended_ms is None else iso(row.ended_ms),
    }
    return shown if row.outcome is None else shown | dict(row.outcome)


async def _ended(service: Service, started: Started, seconds: float | None) -> RunRow | None:
    """Return the run once it is over; None when that takes longer than the client waits."""
    try:
        async with asyncio.timeout(seconds):
            if started.live is not None:
                await started.live.over.wait()
            while True:
                row = await service.app.storage.runs.find(started.row.thread_id, started.row.run_id)
                if row is None:
                    raise thread_not_found()
                if row.status.over:
                    return row
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return None


async def _result(service: Service, row: RunRow) -> Response:
    outcome = row.outcome or {}
    match row.status:
        case RunStatus.CANCELLED:
            raise Refusal(409, "run_cancelled", "The run was cancelled.", run_id=row.run_id)
        case RunStatus.TIMEOUT:
            raise Refusal(504, "run_timeout", str(outcome.get("error")), run_id=row.run_id)
        case RunStatus.SUCCESS | RunStatus.INTERRUPTED:
            found = await read_state(service.app.checkpoints, row.thread_id)
            values = None if found is None else dict(found.values)
            if found is not None and found.prompts:
                values = (values or {}) | {"__interrupt__": prompts_json(found)}
            answer = json_answer(values)
            answer.headers["x-run-id"] = row.run_id
            return answer
    if service.closing:
        raise Refusal(503, "shutting_down", "The server is shutting down.", headers={"retry-after": "1"})
    code = outcome.get("code")
    raise Refusal(500, "run_failed", str(outcome.get("error", "The run failed.")), b4_code=code, run_id=row.run_id)


def _asked(body: Mapping[str, Any]) -> _Asked:
    if not isinstance(body.get("route"), str):
        raise invalid("`route` is not a text such as '/chat#agent'.")
    timeout = body.get("timeout_ms")
    if timeout is not None and not (type(timeout) is int and 1 <= timeout <= MAX_TIMEOUT_MS):
        raise invalid(f"`timeout_ms` is not a number from 1 to {MAX_TIMEOUT_MS:,}.")
    strategy = body.get("multitask_strategy", OnBusy.REJECT.value)
    if strategy not in list(OnBusy):
        raise invalid(f"`multitask_strategy` is none of {', '.join(OnBusy)}.")
    given = body.get("input", {})
    try:
        messages_of(given)
    except InputInvalid as error:
        raise invalid(error.message) from None
    return _Asked(body["route"], given, None if timeout is None else timeout / 1_000, OnBusy(strategy))


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (1 <= len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
        raise invalid(f"`Idempotency-Key` has 1 to {_LONGEST_KEY} printable ASCII characters.")
    return key


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
