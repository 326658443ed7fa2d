"""When a run gives up: on a family of kernels that dies or is lacking, on what is too slow or large, and in the end."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.runtime.probe import supervisor
from ridgeline.runtime.probe.case import KernelCase, make_case
from ridgeline.runtime.probe.supervisor import ProbeRun, Refused, Settings, supervise

READY = {"rates": {"flops": 1e12, "bytes": 1e11}, "free_bytes": 1 << 30, "cache_bytes": 1 << 20, "extra": []}


class Scripted:
    """A child that answers by rule: what a case's impl says."""

    started = 0

    def __init__(self) -> None:
        type(self).started += 1
        self.asked: dict[str, Any] = {}

    def send(self, value: dict[str, Any]) -> None:
        self.asked = value

    def receive(self, limit_s: float) -> dict[str, Any] | str:
        if "open" in self.asked:
            return {"ready": READY}
        impl = self.asked["case"]["identity"]["impl"]
        if impl == "dies":
            return "the process died of SIGILL"
        row = {
            "op": self.asked["case"]["identity"]["op"],
            "impl": impl,
            "ok": impl != "lacks",
            "m": self.asked["case"]["identity"]["m"],
        }
        return {"row": row, "poisoned": impl == "poisons"}

    def close(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.started = 0
    monkeypatch.setattr(supervisor, "start_child", Scripted)


def made(impl: str, count: int, side: int = 8) -> list[KernelCase]:
    dims = [(("m", at), ("n", side), ("k", side)) for at in range(1, count + 1)]
    return [make_case(op="gemm", impl=impl, dtype="bf16", dims=one, group="gemm") for one in dims]


def took(cases: list[KernelCase], minutes: float = 5.0) -> ProbeRun:
    return supervise(Settings(device="cpu", minutes=minutes), lambda ready: cases)


def test_a_family_that_died_twice_is_left_alone(scripted: None) -> None:
    run = took([*made("dies", 6), *made("works", 3)])
    assert [row["impl"] for row in run.rows] == ["dies", "dies", "works", "works", "works"]
    assert Scripted.started == 3
    assert run.rows[0]["why"] == "the process died of SIGILL"


def test_a_family_that_is_lacking_is_asked_three_times(scripted: None) -> None:
    run = took([*made("lacks", 9), *made("works", 1)])
    assert [row["impl"] for row in run.rows] == ["lacks"] * 3 + ["works"]
    assert Scripted.started == 1


def test_a_poisoned_device_gets_a_new_process_and_no_blame(scripted: None) -> None:
    run = took([*made("poisons", 1), *made("works", 2)])
    assert [row["ok"] for row in run.rows] == [True, True, True]
    assert Scripted.started == 2


def test_what_is_too_slow_or_too_large_is_not_tried(scripted: None) -> None:
    slow, large = made("works", 1, side=1 << 20), made("works", 1, side=30_000)
    assert took([*slow, *large, *made("other", 1)]).rows[0]["impl"] == "other"


def test_rows_are_kept_as_they_come_and_those_of_an_earlier_run_are_not_taken_again(scripted: None) -> None:
    kept: list[dict[str, Any]] = []
    cases = made("works", 3)

    def keep(key: str, row: dict[str, Any]) -> None:
        assert key in {case.key() for case in cases}
        kept.append(row)

    supervise(Settings(device="cpu", minutes=5.0), lambda ready: cases, keep=keep, done=[cases[0].key()])
    assert [row["m"] for row in kept] == [2, 3]


def test_the_time_box_ends_a_run(scripted: None) -> None:
    small = make_case(op="launch", impl="works", dtype="", dims=(("m", 0), ("n", 0), ("k", 0)), group="host")
    run = took([small], minutes=1e-9)
    assert run.rows == []
    assert run.left == 1


def test_a_device_that_cannot_be_opened_is_refused(scripted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "receive", lambda self, limit_s: {"refused": "torch cannot use 'abacus'"})
    with pytest.raises(Refused, match="abacus"):
        took(made("works", 1))
    monkeypatch.setattr(Scripted, "receive", lambda self, limit_s: "the process died of SIGSEGV")
    with pytest.raises(Refused, match="SIGSEGV"):
        took(made("works", 1))
