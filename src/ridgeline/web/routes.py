"""Answer the requests of the workbench: its page, its files, views as JSON, tables as CSV, tasks and dropped files.

The list of routes is the whole of what is served; `guard` stands in front of it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError, Problem, Refusal
from ridgeline.core.files import spreadsheet_cell
from ridgeline.version import __version__
from ridgeline.web.blocks import GridTable, PageBlock, TableCell
from ridgeline.web.figures import ExplainedNumber
from ridgeline.web.frames import frame_routes
from ridgeline.web.guard import LOCKED, AccessPolicy, AsgiApp, Receive, Scope, Send, guard_app, host_of
from ridgeline.web.jobs import CONFIRMED, TaskBoard, TaskRun, Tell
from ridgeline.web.state import PageState, read_state
from ridgeline.web.uploads import FileShelf, safe_name
from ridgeline.web.views.pages import PAGES, page_view, unknown_page

STATIC = Path(__file__).parent / "static"
REMEMBERED_VIEWS = 256
BIGGEST_BODY = 100_000  # bytes of a JSON body
REFUSED, ABSENT = 400, 404


@dataclass(kw_only=True)
class Workbench:
    """What one server holds: who may ask, files, tasks, and views that were made already."""

    policy: AccessPolicy
    allow_launch: bool = False
    shelf: FileShelf = field(default_factory=FileShelf)
    board: TaskBoard = field(default_factory=TaskBoard)

    def __post_init__(self) -> None:
        self._view = lru_cache(maxsize=REMEMBERED_VIEWS)(self._make_view)

    def view(self, page: str, query: str) -> bytes:
        """The JSON of a page, made once while it is remembered."""
        return self._view(page, query)

    def page_of(self, key: str) -> str:
        """The page that shows a file of the shelf."""
        from ridgeline.web.views.files import page_of_file

        return page_of_file(self.shelf.paths[key])

    def _make_view(self, page: str, query: str) -> bytes:
        return encode_json(page_view(read_state(page, query), self.shelf.paths))

    def task_blocks(self, name: str, state: PageState) -> Callable[[Tell], tuple[PageBlock, ...]]:
        """The work of a task of a state."""
        from ridgeline.web.tasks import task_function

        work = task_function(name, allow_launch=self.allow_launch)
        return lambda tell: work(state, self.shelf.paths, tell)


def encode_json(value: object) -> bytes:
    """A value as JSON; NaN would be our mistake."""
    return json.dumps(to_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def workbench_app(bench: Workbench) -> AsgiApp:
    """The app of a workbench, behind its gate."""
    return guard_app(by_host(Starlette(routes=workbench_routes(bench)), bench), bench.policy)


def by_host(workbench: AsgiApp, bench: Workbench) -> AsgiApp:
    """The workbench on its own address, the page of traces on the other; the gate has let no third one through."""
    frames = Starlette(routes=frame_routes(bench.policy, bench.shelf.paths))

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        is_frame = scope["type"] == "http" and host_of(scope) == bench.policy.frame_host
        await (frames if is_frame else workbench)(scope, receive, send)

    return dispatch


def workbench_routes(bench: Workbench) -> list[BaseRoute]:
    """Everything that is served."""
    routes = _Routes(bench)
    pages = [Route(f"/{page}", routes.shell) for page in PAGES]
    return [
        Route("/", routes.shell),
        *pages,
        Route("/static/{name}", routes.static),
        Route("/api/facts", routes.facts),
        Route("/api/view/{page}", routes.view),
        Route("/api/table/{page}/{name}", routes.table),
        Route("/api/task/{page}/{name}", routes.follow),
        Route("/api/task/{page}/{name}", routes.start, methods=["POST"]),
        Route("/api/cancel/{page}/{name}", routes.cancel, methods=["POST"]),
        Route("/api/files", routes.drop, methods=["POST"]),
    ]


class _Routes:
    """The answers of one workbench."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench

    async def shell(self, _: Request) -> Response:
        """The one page; its script reads the URL."""
        return self._answer((STATIC / "page.html").read_bytes(), "text/html; charset=utf-8")

    async def static(self, request: Request) -> Response:
        """A style or a script."""
        from ridgeline.report.pieces import STYLE, page_style, picture_style

        name = request.path_params["name"]
        if name == "page.css":
            style = page_style("serve") + STYLE + (STATIC / "workbench.css").read_text(encoding="utf-8")
            return self._answer(style.encode(), "text/css; charset=utf-8")
        if name == "picture.css":
            return self._answer((picture_style() + STYLE).encode(), "text/css; charset=utf-8")
        file = STATIC / name
        if file.parent != STATIC or file.suffix not in (".js", ".svg") or not file.is_file():
            return _nothing()
        kind = "text/javascript" if file.suffix == ".js" else "image/svg+xml"
        return self._answer(file.read_bytes(), f"{kind}; charset=utf-8")

    async def facts(self, _: Request) -> Response:
        """What the bar at the top shows: pages, version, whether jobs may be started."""
        pages = [{"page": page, "name": name} for page, name in PAGES.items()]
        from ridgeline.web.views.home import question_cards

        cards = list(question_cards())
        policy = self.bench.policy
        facts = {"pages": pages, "cards": cards, "version": __version__, "launch": self.bench.allow_launch,
                 "frames": policy.frame_origin}  # fmt: skip
        return self._answer(encode_json(facts))

    async def view(self, request: Request) -> Response:
        """A page as JSON."""
        page = request.path_params["page"]
        if page not in PAGES:
            return self._refuse(unknown_page(page))
        try:
            return self._answer(await run_in_threadpool(self.bench.view, page, request.url.query))
        except InputError as wrong:
            return self._refuse(wrong)

    async def table(self, request: Request) -> Response:
        """A table of a page as CSV."""
        page, name = request.path_params["page"], request.path_params["name"].removesuffix(".csv")
        if page not in PAGES:
            return self._refuse(unknown_page(page))
        try:
            state = read_state(page, request.url.query)
            view_page = await run_in_threadpool(page_view, state, self.bench.shelf.paths)
        except InputError as wrong:
            return self._refuse(wrong)
        table = next((block for block in view_page.blocks if isinstance(block, GridTable) and block.name == name), None)
        return _nothing() if table is None else self._answer(table_csv(table).encode(), "text/csv; charset=utf-8")

    async def start(self, request: Request) -> Response:
        """Start a task of a state, or join the one that is going on."""
        try:
            state, name = self._task(request)
            body = json.loads(await _small_body(request) or b"{}")
            self._confirm(name, body)
            run = self.bench.board.start(_task_key(request), self.bench.task_blocks(name, state))
        except InputError as wrong:
            return self._refuse(wrong)
        except ValueError:
            problem = Problem(path="body", given="no JSON", expected="an object", todo="send {}")
            return self._refuse(InputError(problem))
        return self._answer(encode_json(run_facts(run)))

    def _confirm(self, name: str, body: object) -> None:
        word = CONFIRMED.get(name, "")
        if word and (not isinstance(body, dict) or body.get("confirm") != word):
            problem = Problem(path="confirm", given="another word", expected=repr(word), todo=f"type {word}")
            raise InputError(problem)

    async def follow(self, request: Request) -> Response:
        """How far a task is, or its answer."""
        run = self.bench.board.find(_task_key(request))
        return self._answer(encode_json({"phase": "absent"} if run is None else run_facts(run)))

    async def cancel(self, request: Request) -> Response:
        """Ask a task to stop."""
        run = self.bench.board.cancel(_task_key(request))
        return self._answer(encode_json({"phase": "absent"} if run is None else run_facts(run)))

    async def drop(self, request: Request) -> Response:
        """Take a file; the state of the page that shows it."""
        name = safe_name(unquote(request.query_params.get("name", "file")))
        try:
            key = await self.bench.shelf.receive(name, request.stream())
        except InputError as wrong:
            return self._refuse(wrong)
        page = self.bench.page_of(key)
        return self._answer(encode_json({"file": key, "url": PageState(page=page).choose(file=key).url}))

    def _task(self, request: Request) -> tuple[PageState, str]:
        page = request.path_params["page"]
        if page not in PAGES:
            raise unknown_page(page)
        return read_state(page, request.url.query), request.path_params["name"]

    def _answer(self, body: bytes, kind: str = "application/json") -> Response:
        policy = self.bench.policy
        page_policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
            f"frame-src {policy.frame_origin}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return Response(body, headers={**LOCKED, "content-security-policy": page_policy}, media_type=kind)

    def _refuse(self, wrong: InputError) -> Response:
        refusal = Refusal(problems=wrong.problems or (Problem(path="", given=str(wrong), expected="another input"),))
        return JSONResponse(to_json(refusal), status_code=REFUSED, headers=LOCKED)


def _nothing() -> Response:
    return Response("nothing here\n", status_code=ABSENT, headers=LOCKED, media_type="text/plain")


def _task_key(request: Request) -> str:
    return f"{request.path_params['page']}/{request.path_params['name']}?{request.url.query}"


def run_facts(run: TaskRun) -> dict[str, object]:
    """A run as a page follows it."""
    return {"phase": run.phase, "words": run.words, "blocks": list(run.blocks)}


async def _small_body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BIGGEST_BODY:
            problem = Problem(path="body", given=f"more than {BIGGEST_BODY:,} bytes", expected="a small object")
            raise InputError(problem)
    return body


def table_csv(table: GridTable) -> str:
    """A table as CSV, numbers in base units; no cell is one that a spreadsheet runs."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow([spreadsheet_cell(name) for name in table.head])
    writer.writerows([csv_cell(cell) for cell in row] for row in table.rows)
    return lines.getvalue()


def csv_cell(cell: TableCell) -> str:
    """A cell of a CSV."""
    if isinstance(cell, ExplainedNumber):
        return repr(cell.value)
    return spreadsheet_cell(cell if isinstance(cell, str) else cell.text)
