"""Start the workbench on this machine alone: two ports of 127.0.0.1, a token of this start, and no other way in."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.version import __version__

if TYPE_CHECKING:
    from uvicorn import Server

HOST = "127.0.0.1"
PACKAGES = ("starlette", "uvicorn")
GRACE_S = 1.0  # that open requests may take when the server ends


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWorkbench:
    """A workbench that is being served: its address with the token, and that of what was opened.

    urls           URLs of the files that were named, the first of which a browser is shown
    allow_launch   whether pages may start jobs on this machine
    """

    url: str
    port: int
    urls: tuple[str, ...]
    allow_launch: bool
    version: str = __version__

    JSON = "kind='workbench' *"


def require_web() -> None:
    """Refuse without the extra, with what to install."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        problem = Problem(
            path="open", given=f"no {' and no '.join(missing)} on this machine", expected="the extra `web`",
            todo="pip install 'ridgeline[web]'",
        )  # fmt: skip
        raise InputError(problem)


@contextmanager
def serve_workbench(
    files: Sequence[Path | str] = (), *, port: int = 0, allow_launch: bool = False
) -> Iterator[tuple[OpenWorkbench, threading.Thread]]:
    """Serve while the context lasts: what is open, and the thread that ends with the server."""
    require_web()
    with _listening(port) as listener, _listening(0) as frame_listener:
        workbench, server, warm_up, close = _prepare(files, listener, frame_listener, allow_launch)
        thread = threading.Thread(
            target=server.run, args=([listener, frame_listener],), daemon=True, name="ridgeline-workbench"
        )
        thread.start()
        try:
            while not server.started and thread.is_alive():
                thread.join(0.01)
            threading.Thread(target=warm_up, daemon=True, name="ridgeline-warm-up").start()
            yield workbench, thread
        finally:
            server.should_exit = True
            thread.join(GRACE_S + 4)
            close()


def _prepare(
    files: Sequence[Path | str], listener: socket.socket, frame_listener: socket.socket, allow_launch: bool
) -> tuple[OpenWorkbench, Server, Callable[[], object], Callable[[], None]]:
    import uvicorn

    from ridgeline.web.guard import AccessPolicy
    from ridgeline.web.routes import Workbench, workbench_app
    from ridgeline.web.state import PageState

    ports = listener.getsockname()[1], frame_listener.getsockname()[1]
    policy = AccessPolicy(token=secrets.token_urlsafe(32), port=ports[0], frame_port=ports[1])
    bench = Workbench(policy=policy, allow_launch=allow_launch)
    keys = [bench.shelf.add(Path(file)) for file in files]
    urls = [PageState(page=bench.page_of(key)).choose(file=key).url for key in keys]
    addresses = [f"{policy.origin}{url}{'&' if '?' in url else '?'}token={policy.token}" for url in urls or ["/"]]
    config = uvicorn.Config(
        workbench_app(bench), log_config=None, access_log=False, lifespan="off", ws="none", http="h11",
        server_header=False, date_header=False, limit_concurrency=200, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    workbench = OpenWorkbench(url=addresses[0], port=ports[0], urls=tuple(addresses), allow_launch=allow_launch)
    return workbench, server, partial(bench.view, "home", ""), bench.shelf.close


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as wrong:
            problem = Problem(path="--port", given=str(port), expected="a free port of this machine",
                              todo="leave it out, and a free one is taken")  # fmt: skip
            raise InputError(problem) from wrong
        yield listener
