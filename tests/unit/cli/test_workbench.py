"""`ridgeline open`: it prints its address, answers with the token alone, ends, and says what is missing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from ridgeline.cli.main import main


def test_help_needs_no_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        "sys.argv = ['ridgeline', 'open', '--help']\n"
        "from ridgeline.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--allow-launch" in done.stdout


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.web import server

    monkeypatch.setattr(server, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["ridgeline", "open"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "pip install 'ridgeline[web]'" in capsys.readouterr().err


def is_reached(address: str, port: int) -> bool:
    """Whether somebody answers at an address of this machine that is not its loopback."""
    if address.startswith("127."):
        return False
    with socket.socket() as link:
        link.settimeout(2)
        return link.connect_ex((address, port)) == 0


def test_it_serves_this_machine_alone_until_its_time_is_over() -> None:
    pytest.importorskip("uvicorn", reason="the workbench needs the extra web")
    words = [sys.executable, "-m", "ridgeline", "open", "--json", "--seconds", "4"]
    ask = build_opener(ProxyHandler({})).open
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        opened = json.loads(text)
        assert opened["kind"] == "workbench"
        token = opened["url"].partition("token=")[2]
        base = f"http://127.0.0.1:{opened['port']}"
        with ask(Request(f"{base}/api/facts", headers={"X-Ridgeline-Token": token})) as answer:
            assert answer.status == 200
        with pytest.raises(HTTPError) as refused:
            ask(f"{base}/api/facts")
        assert refused.value.code == 403
        refused.value.close()
        assert not is_reached(socket.gethostbyname(socket.gethostname()), opened["port"])
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("words", "message"), [(("absent.json",), "a file or a folder"), (("--port", "99999"), "a free port")]
)
def test_what_cannot_be_opened_is_refused(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ridgeline", "open", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
