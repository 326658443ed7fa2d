"""Degrees of parallelism: what is compared, what a difference becomes, and why it is not run elsewhere."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ridgeline.models.load import model  # noqa: E402
from ridgeline.runtime.bringup import invariances, supervise  # noqa: E402
from ridgeline.runtime.bringup.findings import BringUp  # noqa: E402
from ridgeline.runtime.bringup.repro import Session  # noqa: E402
from ridgeline.runtime.bringup.target import OwnModule, Target  # noqa: E402
from ridgeline.runtime.bringup.testbed import DrawSpread, small_model  # noqa: E402
from ridgeline.runtime.train.request import Compared, RunOptions, Verification, make_request  # noqa: E402


def session(device: str = "cpu", target: Target | None = None) -> Session:
    target = target or model("qwen3-0.6b")
    return Session(target=target, device=device, found=BringUp(model=target.id, device=device))


def verification(loss: float = 5.0, **differences: float) -> Verification:
    each = tuple(Compared(name=name, difference=off, tolerance=1e-5) for name, off in differences.items())
    return Verification(loss=loss, reference_loss=5.0, tolerance=1e-5, parameters=each)


def test_reasons_why_it_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariances, "compare_ranks", lambda *_: pytest.fail("processes were started"))
    own = OwnModule(reference="mine:make")
    monkeypatch.setattr(invariances.os, "sched_getaffinity", lambda _: [0, 1])
    told = {
        "ridge": invariances.parallel(session("ridge"), "fp32").reason,
        "bf16": invariances.parallel(session(), "bf16").reason,
        "own": invariances.parallel(session(target=own), "fp32").reason,
        "other": invariances.parallel(session("xpu"), "fp32").reason,
    }
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(invariances.dist, "is_backend_available", lambda _: True)
    told["one GPU"] = invariances.parallel(session("cuda:0"), "fp32").reason
    monkeypatch.setattr(invariances.os, "sched_getaffinity", lambda _: [0])
    told["one core"] = invariances.parallel(session(), "fp32").reason
    monkeypatch.setattr(invariances.dist, "is_backend_available", lambda _: False)
    told["no gloo"] = invariances.parallel(session(), "fp32").reason
    words = {
        "ridge": "no process group", "bf16": "in fp32 only", "own": "a user's module", "other": "--device xpu",
        "one GPU": "one device", "one core": "one core", "no gloo": "no gloo",
    }  # fmt: skip
    assert {name: word in told[name] for name, word in words.items()} == dict.fromkeys(words, True)


def test_a_model_that_the_trainer_cannot_split_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answered(requests: tuple[object, ...], limit_s: float) -> tuple[Verification, ...]:
        asked.append(len(requests))
        return tuple(verification(a=1e-7) for _ in requests)

    monkeypatch.setattr(invariances, "compare_ranks", answered)
    monkeypatch.setattr(invariances, "refusal_of", lambda _: "")
    whole = model("qwen3-0.6b")
    one_head = replace(whole, blocks=tuple(replace(b, mixer=replace(b.mixer, kv_heads=1)) for b in whole.blocks))
    found = invariances.parallel(session(target=one_head), "fp32")
    assert (found.verdict, asked) == ("pass", [1])
    assert found.where.startswith("dp 2")
    assert found.reason.startswith("tp 2: ")
    assert "key-value heads (1)" in found.reason


def test_a_difference_is_a_finding_with_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariances, "refusal_of", lambda _: "")
    for tp, dp, where, phase in (
        (verification(a=1e-7, b=2e-3, c=1e-3, d=0.0), verification(a=1e-6), "tp 2: gradient of c", "backward"),
        (verification(a=1e-7), verification(a=float("nan")), "dp 2: gradient of a", "backward"),
        (verification(a=1e-7), verification(loss=5.1, a=1e-8), "dp 2: loss", "loss"),
    ):
        monkeypatch.setattr(invariances, "compare_ranks", lambda *_, both=(tp, dp): both)
        run = session()
        found = invariances.parallel(run, "fp32")
        assert (found.verdict, found.where) == ("fail", where)
        (finding,) = run.found.findings
        assert (finding.op, finding.statistic, finding.phase) == ("torch.distributed", "parallel", phase)
        assert not finding.measured <= finding.limit
        assert not run.found.right


def test_what_is_zero_but_for_rounding_may_differ_as_right_devices_do() -> None:
    source = torch.Generator().manual_seed(0)
    noise = lambda: 1e-8 * torch.randn(64, generator=source, dtype=torch.float64)  # noqa: E731
    large, nothing = torch.randn(64, generator=source, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    exact = {"gradient of large": large, "gradient of nothing": nothing}
    draws = [{name: one + noise() for name, one in exact.items()} for _ in range(6)]
    told = invariances.widen_tolerances(verification(large=2e-5, nothing=2e-5), DrawSpread(exact=exact, draws=draws))
    assert [one.name for one in told.diverged] == ["large"]
    assert told.parameters[0].tolerance == 1e-5
    assert 2e-5 < told.parameters[1].tolerance < 2e-4


def test_processes_that_do_not_answer_are_ended_in_time() -> None:
    request = make_request(
        invariances.scenario_of(small_model(model("qwen3-0.6b")), invariances.MESHES["tp 2"]), RunOptions(verify=True)
    )
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        invariances.compare_ranks((request,), limit_s=0.05)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_two_processes_of_the_host_give_what_one_gives() -> None:
    found = supervise.bringup(model("qwen3-0.6b"), "cpu", only=("invariances",))
    told = {one.format: one for one in found.invariances if one.name == "parallel"}
    assert told["bf16"].verdict == "not run"
    assert told["fp32"].verdict == ("not run" if invariances.refusal_of("cpu") else "pass")
    assert told["fp32"].reason == invariances.refusal_of("cpu")
    assert told["fp32"].measured <= told["fp32"].limit
    assert all(one.op != invariances.OP for one in found.findings)
