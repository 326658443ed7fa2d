"""Ask a workbench without a socket: its app is called as a server calls it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the workbench needs the extra web")

from ridgeline.web.guard import AccessPolicy
from ridgeline.web.routes import Workbench, workbench_app

TOKEN, PORT, FRAMES = "the-token-of-this-start", 4711, 4712
POLICY = AccessPolicy(token=TOKEN, port=PORT, frame_port=FRAMES)
HOST, FRAME_HOST = f"127.0.0.1:{PORT}", f"127.0.0.1:{FRAMES}"


@dataclass
class Answered:
    """What came back: the status, or the code that closed a WebSocket."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks one workbench; headers are those of a browser of its own unless they are given."""

    def __init__(self, **options: Any) -> None:
        self.bench = Workbench(policy=POLICY, **options)
        self.app = workbench_app(self.bench)

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        chunks: Iterable[bytes] = (b"",),
        kind: str = "http",
    ) -> Answered:
        """Send one request."""
        usual = {"host": HOST, "cookie": f"{POLICY.cookie}={TOKEN}", "sec-fetch-site": "same-origin"}
        if method != "GET":
            usual |= {"origin": POLICY.origin, "content-type": "application/json"}
        given = {**usual, **(headers or {})}
        path, _, query = path.partition("?")
        scope = {
            "type": kind, "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "root_path": "", "scheme": "http" if kind == "http" else "ws",
            "headers": [(key.encode(), value.encode()) for key, value in given.items() if value],
            "server": ("127.0.0.1", PORT), "client": ("127.0.0.1", 1), "subprotocols": [],
        }  # fmt: skip
        if kind != "http":
            del scope["method"]
        return asyncio.run(self._exchange(scope, list(chunks)))

    async def _exchange(self, scope: dict[str, Any], chunks: list[bytes]) -> Answered:
        answer, place = Answered(), 0

        async def receive() -> dict[str, Any]:
            nonlocal place
            if scope["type"] == "websocket":
                return {"type": "websocket.connect"}
            if place >= len(chunks):
                return {"type": "http.disconnect"}
            place += 1
            return {"type": "http.request", "body": chunks[place - 1], "more_body": place < len(chunks)}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {key.decode().lower(): value.decode() for key, value in message["headers"]}
            elif message["type"] == "http.response.body":
                answer.body += message.get("body", b"")
            else:
                answer.status = message.get("code", 0) if message["type"] == "websocket.close" else 101

        await self.app(scope, receive, send)
        return answer
