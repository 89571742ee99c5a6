"""What operators can watch: metrics by pattern, spans by run, one JSON object a line of the log."""

from __future__ import annotations

import io
import json
import logging
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from b4run.server.logs import JsonLines, set_up_logging

from .conftest import ROUTE


def figures(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


async def test_metrics_count_requests_and_runs_by_pattern(serve):
    server = await serve()
    assert (await server.http.post("/threads/t-secret/runs/wait", json={"route": ROUTE, "input": "go"})).status_code == 200
    await server.http.get("/threads/t-none")
    answer = await server.http.get("/metrics")
    assert "t-secret" not in answer.text
    found = figures(answer.text)
    assert found["b4run_request_seconds_count", "POST", "/threads/{thread_id}/runs/wait", "200"] == 1
    assert found["b4run_request_seconds_count", "GET", "/threads/{thread_id}", "404"] == 1
    assert found["b4run_refusals_total", "404"] == 1
    assert found["b4run_run_seconds_count", ROUTE, "success"] == 1
    assert found["b4run_slot_wait_seconds_count", ROUTE] == 1
    assert (found["b4run_runs_active",], found["b4run_slots_held",], found["b4run_sandboxes_warm",]) == (0, 0, 1)


async def test_without_the_extra_there_are_no_metrics_and_everything_else_works(serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    server = await serve()
    assert (await server.http.get("/metrics")).status_code == 404
    assert (await server.http.post("/threads")).status_code == 200


async def test_a_run_is_a_span(serve, monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    server = await serve()
    await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})
    (span,) = [span for span in exporter.get_finished_spans() if span.name == f"run {ROUTE}"]
    assert (span.attributes["b4run.thread_id"], span.attributes["b4run.route"]) == ("t-1", ROUTE)


def test_the_log_is_one_json_object_a_line():
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up_logging("json", stream=stream)
        logging.getLogger("b4run.server").info("a run\nended", extra={"event": "run.ended", "thread_id": "t-1"})
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("b4run.server").exception("it failed")
    finally:
        root.handlers[:], root.level = before, level
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["message"], first["level"], first["event"], first["thread_id"]) == ("a run\nended", "info", "run.ended", "t-1")
    assert "KeyError" in second["exception"]
    assert isinstance(JsonLines(), logging.Formatter)
