"""Views are pure functions of a state: what they show is asserted here without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the workbench needs the extra web")

import ridgeline
from ridgeline.core.encode import to_json
from ridgeline.web.state import PageState, read_state
from ridgeline.web.tasks import TASKS, task_function
from ridgeline.web.views.home import question_cards
from ridgeline.web.views.pages import PAGES, page_view

DECODE = "kind=decode&chips=8&pp=1&batch=64&seq=4096"
SMALL = "model=llama3.2-1b&chips=8&batch=64&tp=1&pp=1"
CHIP = "spec=1000+TFLOP%2Fs%3B96+GB%3B4+TB%2Fs%3B450+GB%2Fs%3B50+GB%2Fs%3B8%3B600+W%3B2.5+USD%2Fh"
STATES = [
    *((page, "") for page in PAGES),
    ("predict", DECODE), ("predict", "kind=prefill&chips=8&pp=1&batch=4"), ("predict", "x_bandwidth=2&x_compute=0.5"),
    ("predict", "tp=128"), ("predict", "model=lama"), ("predict", "set=nonsense"), ("predict", "chips=-3"),
    ("predict", "machine=l4&chips=8&tp=1&pp=1"), ("predict", "file=absent"), ("predict", "model=/etc/passwd"),
    ("describe", CHIP), ("describe", "spec=12;x"), ("describe", "model=deepseek-v3&machine=gb200-nvl72&chips=288"),
    ("compare", "versus=machine%3Db200-sxm%7Cmachine%3Dmi355x%7Ctp%3D128"), ("sense", DECODE),
    ("sense", "curve=chip.hbm.bandwidth"), ("serving", "kind=serve&chips=1&tp=1&pp=1&seq=1024&model=llama3.1-8b"),
    ("run", DECODE), ("run", "to=vllm"), ("timeline", SMALL),
]  # fmt: skip


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every number of a view with its place, and the object around it."""
    if isinstance(value, dict):
        for key, part in value.items():
            if isinstance(part, (int, float)) and not isinstance(part, bool):
                yield f"{place}.{key}", value
            else:
                yield from numbers(part, f"{place}.{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            if isinstance(part, (int, float)) and not isinstance(part, bool):
                yield f"{place}[{index}]", None
            else:
                yield from numbers(part, f"{place}[{index}]")


def unexplained(view: Any) -> list[str]:
    """Numbers without a formula, or whose formula, inputs or source say nothing."""
    wrong = []
    for place, around in numbers(view):
        is_explained = isinstance(around, dict) and place.endswith(".value") and around["text"]
        if not (is_explained and len(around["formula"]) > 2 and len(around["source"]) > 2):
            wrong.append(place)
        elif any(not (entry["name"] and entry["text"] and entry["source"]) for entry in around["inputs"]):
            wrong.append(f"{place} inputs")
    return wrong


def links(value: Any) -> Iterator[str]:
    """Every address that a view leads to."""
    if isinstance(value, dict):
        yield from (part for key, part in value.items() if key == "href" and part)
        for part in value.values():
            yield from links(part)
    elif isinstance(value, list):
        for part in value:
            yield from links(part)


@pytest.mark.parametrize(("page", "query"), STATES)
def test_every_number_carries_its_formula_inputs_and_source(page: str, query: str) -> None:
    view = to_json(page_view(read_state(page, query), {}))
    json.dumps(view, allow_nan=False)
    assert unexplained(view) == []
    assert view["title"]
    assert view["answer"]
    for href in links(view):
        there = urlsplit(href)
        assert there.path.strip("/") in PAGES, href
        read_state(there.path.strip("/"), there.query)


@pytest.mark.parametrize(("page", "name", "query"), [
    ("plan", "search", "model=llama3.2-1b&chips=2&batch=8&set=plan.schedule=1f1b"), ("design", "design", SMALL),
    ("report", "report", SMALL), ("serving", "sweep", "model=llama3.2-1b&kind=serve&chips=1&tp=1&pp=1&seq=512"),
])  # fmt: skip
def test_every_number_of_a_task_does(page: str, name: str, query: str) -> None:
    heard: list[str] = []
    blocks = task_function(name, allow_launch=False)(read_state(page, query), {}, lambda words: not heard.append(words))
    view = to_json(list(blocks))
    json.dumps(view, allow_nan=False)
    assert unexplained(view) == []
    assert heard
    assert len(view) > 2, [block["kind"] for block in view]


def test_tasks_that_run_something_need_permission() -> None:
    with pytest.raises(ridgeline.core.errors.InputError, match="--allow-launch"):
        task_function("launch", allow_launch=False)
    assert all(callable(task_function(name, allow_launch=True)) for name in TASKS)


def test_a_view_says_what_the_library_says() -> None:
    view = page_view(PageState(page="predict"), {})
    scenario = ridgeline.scenario_of("llama3-70b", on="64xh100-sxm", settings=[
        "workload.seq=8192", "workload.global_batch=512", "plan.tp=8", "plan.pp=2", "plan.microbatch=1",
        "plan.shard=zero1", "plan.recompute=selective", "plan.precision=bf16"])  # fmt: skip
    step = ridgeline.predict(scenario)
    assert isinstance(step, ridgeline.Prediction)
    shown = to_json(view)
    figures = {item["name"]: item["number"]["value"] for item in shown["blocks"][0]["items"]}
    assert figures["a step"] == step.step_time_s
    assert figures["MFU"] == step.utilization.mfu
    parts = {row["name"]: row["number"]["value"] for row in shown["blocks"][1]["rows"]}
    assert parts == {name: seconds for name, seconds in step.seconds_by_part.items() if seconds > 0}
    assert sum(parts.values()) == pytest.approx(shown["blocks"][1]["total"]["value"])
    stacks = shown["blocks"][2]["rows"]
    assert [row["total"]["value"] for row in stacks] == [stage.peak_bytes for stage in step.memory.stages]


def test_the_command_of_a_page_answers_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex
    import sys

    from ridgeline.cli.main import main

    view = to_json(page_view(read_state("predict", "x_bandwidth=2&recompute=full"), {}))
    monkeypatch.setattr(sys, "argv", [*shlex.split(view["command"]), "--json"])
    with pytest.raises(SystemExit):
        main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["step_time_s"] == view["blocks"][0]["items"][0]["number"]["value"]


def test_a_slider_of_the_chip_moves_the_step() -> None:
    def step(query: str) -> float:
        return float(to_json(page_view(read_state("predict", query), {}))["blocks"][0]["items"][0]["number"]["value"])

    today = step("")
    for key in ("x_compute", "x_bandwidth", "x_scaleup", "x_scaleout"):
        assert step(f"{key}=2") < today < step(f"{key}=0.5"), key


@pytest.mark.parametrize(
    "query",
    [
        "model=/etc/passwd",
        "set=chip.base=/tmp/x.toml",
        "set=model=../secret.json",
        "machine=../x.toml",
        "set=workload.arrivals=~/requests.csv",
    ],
)
def test_a_url_names_no_file_of_this_machine(query: str) -> None:
    view = to_json(page_view(read_state("predict", query), {}))
    assert view["blocks"][0]["kind"] == "problems"
    assert "path of this machine" in json.dumps(view["blocks"][0]) or "expected" in json.dumps(view["blocks"][0])
    assert "root:" not in json.dumps(view)


def test_what_is_wrong_is_a_page_with_what_to_do() -> None:
    view = to_json(page_view(read_state("predict", "tp=128"), {}))
    assert view["tone"] == "bad"
    assert view["controls"], "the way back stays on the page"
    assert any(item["todo"] for item in view["blocks"][0]["items"])


def test_every_question_has_an_answer() -> None:
    assert len(question_cards()) >= 16
    for card in question_cards():
        there = urlsplit(card.href)
        view = page_view(read_state(there.path.strip("/"), there.query), {})
        assert view.tone != "bad", card.title


def test_text_of_strangers_is_no_markup() -> None:
    view = to_json(page_view(read_state("describe", "model=%3Cscript%3Ealert(1)%3C/script%3E"), {}))
    assert view["blocks"][0]["kind"] == "problems"
    svg = json.dumps(to_json(page_view(PageState(page="predict"), {})))
    assert not re.search(r"<script|onload=|javascript:", svg)


def test_scripts_load_nothing_from_elsewhere_and_write_no_markup() -> None:
    static = Path(ridgeline.__file__).parent / "web" / "static"
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), (
            file.name
        )
