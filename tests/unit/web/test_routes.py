"""What the routes of a workbench answer: pages, tables, files that are dropped, tasks."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path

import pytest
from workbench import FRAME_HOST, Client

from ridgeline.web import uploads
from ridgeline.web.jobs import AT_ONCE, REMEMBERED, TaskBoard, Tell
from ridgeline.web.uploads import safe_name
from ridgeline.web.views.pages import PAGES

BYTES = {"content-type": "application/octet-stream"}
DATA = Path(__file__).parents[2] / "data" / "h200"


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


def test_the_page_and_what_it_loads(client: Client) -> None:
    page = client.ask("/").body.decode()
    assert "<script>" not in page, "the policy runs none"
    for name in ("page.css", "picture.css", "app.js", "theme.js", "mark.svg"):
        assert client.ask(f"/static/{name}").status == 200, name
    for name in ("../routes.py", "page.html", "absent.js", "workbench.css"):
        assert client.ask(f"/static/{name}").status == 404, name


def test_every_page_is_a_view(client: Client) -> None:
    assert [page["page"] for page in client.ask("/api/facts").json["pages"]] == list(PAGES)
    assert client.ask("/api/view/predict?tp=4").json["url"] == "/predict?tp=4"
    assert client.ask("/api/view/absent").status == 400
    refused = client.ask("/api/view/predict?tpp=4")
    assert refused.status == 400
    assert refused.json["problems"][0]["path"] == "URL"


def test_a_table_is_a_csv_that_no_spreadsheet_runs(client: Client) -> None:
    answer = client.ask("/api/table/describe/chip.csv?machine=h100-sxm")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(answer.body.decode())))
    assert rows[0] == ["number", "value", "evidence", "source"]
    assert {row[0]: float(row[1]) for row in rows[1:]}["hbm.bandwidth"] == 3.35e12
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)
    assert client.ask("/api/table/describe/absent.csv").status == 404


def test_a_dropped_file_is_read_on_its_page(client: Client) -> None:
    scenario = (
        b'model = "llama3-8b"\nsystem = "8xh100-sxm"\n[workload]\nkind = "train"\nseq = 8192\nglobal_batch = 64\n'
    )
    dropped = client.ask("/api/files?name=my%20run.toml", "POST", BYTES, [scenario[:20], scenario[20:]]).json
    assert dropped["url"].startswith("/predict?file=")
    view = client.ask(f"/api/view{dropped['url']}").json
    assert "llama3-8b" in view["title"]
    config = b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}'
    assert client.ask("/api/files?name=config.json", "POST", BYTES, [config]).json["url"].startswith("/describe?file=")


@pytest.mark.skipif(not DATA.exists(), reason="no traces of tests/data here")
def test_a_dropped_trace_is_analysed(client: Client) -> None:
    trace = (DATA / "jax.trace.json.gz").read_bytes()
    url = client.ask("/api/files?name=jax.trace.json.gz", "POST", BYTES, [trace]).json["url"]
    task = url.replace("/files?", "/api/task/files/analyze?")
    run = client.ask(task, "POST", chunks=[b"{}"]).json
    for _ in range(200):
        if (run := client.ask(task).json)["phase"] != "running":
            break
        time.sleep(0.05)
    assert run["phase"] == "done"
    assert next(block["name"] for block in run["blocks"] if block["kind"] == "table") == "findings"
    key = url.partition("file=")[2]
    framed = client.ask(f"/trace/timeline?file={key}", headers={"host": FRAME_HOST, "sec-fetch-site": "same-origin"})
    assert framed.body == trace


def test_files_have_budgets_and_names_of_their_own(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MOST_BYTES", 100)
    monkeypatch.setattr(uploads, "MOST_FILES", 3)
    much = client.ask("/api/files?name=much.json", "POST", BYTES, [b"x" * 60, b"x" * 60])
    assert much.status == 400
    assert "by name" in much.json["problems"][0]["todo"]
    assert client.ask("/api/files?name=nothing.json", "POST", BYTES).status == 400
    for number in range(6):
        answer = client.ask(f"/api/files?name=..%2F..%2F.bashrc{number}", "POST", BYTES, [b"words"])
        assert answer.status == 200
    inside = list(client.bench.shelf.folder.rglob("*"))
    assert len([path for path in inside if path.is_file()]) == 3
    assert all(path.resolve().is_relative_to(client.bench.shelf.folder.resolve()) for path in inside)
    assert safe_name("/etc/passwd") == "passwd"
    assert safe_name("\x00\n") == "file"


def test_nothing_is_started_without_permission_or_its_word(client: Client) -> None:
    refused = client.ask("/api/task/run/launch", "POST", chunks=[b'{"confirm": "run"}'])
    assert refused.status == 400
    assert "--allow-launch" in refused.body.decode()
    allowed = Client(allow_launch=True)
    assert "type run" in allowed.ask("/api/task/run/launch", "POST", chunks=[b"{}"]).body.decode()
    for body in (b"", b"[]", b"nonsense", b'{"confirm": "RUN"}', b"{" * 200_000):
        assert allowed.ask("/api/task/run/launch", "POST", chunks=[body]).status == 400, body[:20]
    assert client.ask("/api/task/run/absent", "POST", chunks=[b"{}"]).status == 400


def test_a_task_tells_how_far_it_is_and_stops_when_asked() -> None:
    board = TaskBoard()

    def work(tell: Tell) -> tuple[()]:
        count = 0
        while tell(f"{count} done"):
            count += 1
            time.sleep(0.005)
        return ()

    run = board.start("one", work)
    assert board.start("one", work) is run, "the same question is asked once"
    for place in range(1, AT_ONCE):
        board.start(f"more {place}", work)
    with pytest.raises(Exception, match="cancel one"):
        board.start("too many", work)
    for key in list(board.runs):
        board.cancel(key)
    until = time.monotonic() + 10
    while any(entry.phase == "running" for entry in board.runs.values()) and time.monotonic() < until:
        time.sleep(0.01)
    assert run.phase == "stopped"
    for place in range(REMEMBERED + 5):
        board.start(f"short {place}", lambda tell: ())
        time.sleep(0.01)
    assert len(board.runs) <= REMEMBERED + 1, "memory is bounded"


def test_a_task_that_fails_says_why() -> None:
    board = TaskBoard()

    def work(tell: Tell) -> tuple[()]:
        raise ZeroDivisionError("of ours")

    run = board.start("one", work)
    for _ in range(200):
        if run.phase != "running":
            break
        time.sleep(0.01)
    assert run.phase == "failed"
    assert "ZeroDivisionError" in str(run.blocks)


def test_views_are_remembered_within_bounds(client: Client) -> None:
    first = client.ask("/api/view/predict?tp=2").body
    assert client.ask("/api/view/predict?tp=2").body == first
    assert client.bench._view.cache_info().maxsize is not None
