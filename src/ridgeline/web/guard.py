"""Refuse whatever is not for the person who started the server: one gate in front of every route, HTTP or WebSocket.

    Host        exactly the address that was bound; a name of a stranger's that resolves here is refused
    Origin      where a browser says one, exactly that address; a request that changes something must say it
    token       a random word of this start: in the printed URL once, then in a cookie of this address, or in a header
    body        application/json, or bytes of a file; what a form of another site could send is refused

There is no other way in: what the gate does not know is refused, WebSockets among it.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from ridgeline.core.documents import JsonValue
from ridgeline.core.records import dataclass

Scope = MutableMapping[str, JsonValue]
Message = MutableMapping[str, JsonValue]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = "x-ridgeline-token"
SAFE = ("GET", "HEAD")
BODIES = ("application/json", "application/octet-stream")
SITES = ("same-origin", "none", "")  # what a browser says of who asks; empty where it says nothing
FORBIDDEN, MOVED = 403, 303
HINT = "open the URL that `ridgeline open` printed when it started"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """Who may ask: the token of this start, the port of the workbench, and of the page that shows traces.

    frame_port   an address of its own for the Perfetto page, so that what a trace makes it do reaches nothing else
    """

    token: str
    port: int
    frame_port: int = 0

    @property
    def origin(self) -> str:
        """The workbench's own address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def frame_origin(self) -> str:
        """That of the page of traces."""
        return f"http://127.0.0.1:{self.frame_port}"

    @property
    def frame_host(self) -> str:
        """The same as the header Host has it."""
        return self.frame_origin.removeprefix("http://")

    @property
    def cookie(self) -> str:
        """The cookie's name: browsers share cookies among ports."""
        return f"ridgeline-{self.port}"

    def refusal(self, scope: Scope) -> str:
        """Why a request is refused; empty where it may pass.

        >>> gate = AccessPolicy(token="t", port=80)
        >>> head = [(b"host", b"127.0.0.1:80")]
        >>> gate.refusal({"type": "http", "method": "GET", "headers": head})[:17]
        'no token: open th'
        >>> gate.refusal({"type": "http", "method": "GET", "headers": [*head, (b"x-ridgeline-token", b"t")]})
        ''
        """
        headers = _headers(scope)
        if scope["type"] != "http":
            return "no WebSocket is served"
        origins = {self.origin.removeprefix("http://"): self.origin}
        if self.frame_port:
            origins[self.frame_host] = self.frame_origin
        origin = origins.get(headers.get("host", ""))
        if origin is None:
            return "another host: use the address that `ridgeline open` printed"
        return self._other_site(scope, headers, origin) or self._no_token(scope, headers)

    def _other_site(self, scope: Scope, headers: Mapping[str, str], origin: str) -> str:
        """What says that another site asks."""
        is_safe = scope["method"] in SAFE
        if headers.get("origin", origin if is_safe else "") != origin:
            return "another origin, or none on a request that changes something"
        is_framed = origin == self.frame_origin and scope["method"] in SAFE
        if headers.get("sec-fetch-site", "") not in (*SITES, *(("same-site",) if is_framed else ())):
            return "asked by another site"
        if not is_safe and headers.get("content-type", "").split(";")[0].strip() not in BODIES:
            return f"a body of another kind than {' or '.join(BODIES)}"
        return ""

    def _no_token(self, scope: Scope, headers: Mapping[str, str]) -> str:
        given_tokens = [headers.get(HEADER, ""), _cookie(headers, self.cookie)]
        if scope["method"] in SAFE:
            given_tokens.append(token_of(scope))
        is_known = any(secrets.compare_digest(given.encode(), self.token.encode()) for given in given_tokens if given)
        return "" if is_known else f"no token: {HINT}"


def token_of(scope: Scope) -> str:
    """The token in a URL."""
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]


def host_of(scope: Scope) -> str:
    """The header Host."""
    return _headers(scope).get("host", "")


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name; one that comes twice is empty, so that it matches nothing."""
    found: dict[str, str] = {}
    for key, value in scope.get("headers", ()):
        name = key.decode("latin-1").lower()
        found[name] = "" if name in found else value.decode("latin-1")
    return found


def _cookie(headers: Mapping[str, str], name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def guard_app(app: AsgiApp, policy: AccessPolicy) -> AsgiApp:
    """An app behind the gate: refused requests never reach it; the token of a URL moves into a cookie."""

    async def answer_guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif reason := policy.refusal(scope):
            await _refuse(scope, send, reason)
        elif scope["method"] in SAFE and token_of(scope):
            await _move_token(scope, send, policy)
        else:
            await app(scope, receive, send)

    return answer_guarded


async def _refuse(scope: Scope, send: Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:100]})
        return
    body = f"Refused: {reason}.\n".encode()
    await _answer(send, FORBIDDEN, {"content-type": "text/plain; charset=utf-8"}, body)


async def _move_token(scope: Scope, send: Send, policy: AccessPolicy) -> None:
    """To the same address without the token, which the browser now holds as a cookie."""
    pairs = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([(key, value) for key, values in pairs.items() if key != "token" for value in values])
    path = "/" + scope["path"].lstrip("/")
    cookie = f"{policy.cookie}={policy.token}; Path=/; HttpOnly; SameSite=Strict"
    await _answer(send, MOVED, {"location": f"{path}{'?' if query else ''}{query}", "set-cookie": cookie}, b"")


async def _answer(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    pairs: Iterable[tuple[str, str]] = ({**headers, **LOCKED, "content-length": str(len(body))}).items()
    head = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in pairs]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


LOCKED = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}  # fmt: skip
"""Headers of an answer that shows nothing."""
