"""The OpenAPI document is complete, and no request that can be made of it is answered with anything else."""

from __future__ import annotations

import asyncio

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from b4run.server.application import ENDPOINTS
from b4run.server.openapi import DOCUMENTED, document
from b4run.workspace import SourceFile, create_source_bundle

from .conftest import ROUTE
from .test_workspaces import files

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 25
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def test_every_endpoint_is_documented():
    assert {(method, path.replace(":path}", "}")) for method, path, _ in ENDPOINTS} == set(DOCUMENTED)


async def _open(serve, tmp_path):  # type: ignore[no-untyped-def]
    """An app with everything turned on and no policy that refuses, and a thread that ran."""
    tmp_path.chmod(0o700)
    from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox
    from b4run.testing import script

    told = script()
    for _ in range(200):
        told = told.user("go").replies("done")
    allow_all = "from b4run.access import ThreadAccess, allow\npolicy = ThreadAccess(fallback=lambda request: allow({'a': 1}))\n"
    app = files() | {"thread_access.py": allow_all, "auth.py": "async def authenticate(request):\n    return None\n"}
    provider = bubblewrap_sandbox(scope="server", state_dir=tmp_path / "sandboxes")
    server = await serve(app, model=told.model(), provider=provider)
    assert (await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})).status_code == 200
    return server


async def test_no_request_is_answered_with_what_is_not_documented(serve, tmp_path):
    server = await _open(serve, tmp_path)
    failures = await asyncio.to_thread(_fuzz, server.url)
    assert failures == []
    assert server.service.uploading == server.service.creating == server.service.slots.held == 0
    assert (await server.http.get("/readyz")).status_code == 200


def _fuzz(url: str) -> list[str]:
    schema = schemathesis.openapi.from_dict(document())
    found: list[str] = []
    for result in schema.get_all_operations():
        operation = result.ok()

        @FUZZ
        @given(case=operation.as_strategy(), known=st.booleans())
        def attempt(case, known):  # type: ignore[no-untyped-def]
            if known and case.path_parameters and "thread_id" in case.path_parameters:
                case.path_parameters["thread_id"] = "t-1"
            # A run that fails is told as 500 with its own code; what this looks for are faults of the server.
            answer = case.call(base_url=url, timeout=30)
            if answer.status_code == 500 and b'"run_failed"' in answer.content:
                return
            case.validate_response(answer, checks=CHECKS)

        try:
            attempt()
        except BaseException as error:
            found.append(f"{operation.label}: {error}")
    return found


MUTATED = create_source_bundle([SourceFile("README.md", b"# hi\n"), SourceFile("src/a.txt", b"a\n")])


async def test_no_damaged_upload_or_question_makes_a_server_error(serve, tmp_path):
    server = await _open(serve, tmp_path)
    text = MUTATED.to_json()

    def fuzz() -> list[tuple[int, bytes]]:
        import httpx

        seen: list[tuple[int, bytes]] = []
        with httpx.Client(base_url=server.url, timeout=30) as http:

            @settings(max_examples=150, deadline=None, database=None, phases=[Phase.generate])
            @given(st.integers(0, len(text)), st.integers(0, 20), st.binary(max_size=6))
            def attempt(at: int, length: int, change: bytes) -> None:
                damaged = text[:at] + change + text[at + length :]
                for method, path in (("PUT", f"/workspace/sources/{MUTATED.digest}"), ("POST", "/threads/t-1/workspace/inspect")):
                    answer = http.request(method, path, content=damaged)
                    if answer.status_code not in (200, 201, 400, 409, 413, 422):
                        seen.append((answer.status_code, damaged))

            attempt()
        return seen

    assert await asyncio.to_thread(fuzz) == []
    assert server.service.uploading == 0
