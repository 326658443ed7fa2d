"""The ladder, invariances and repeated runs: right devices pass, and what is wrong is traced to its op."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ridgeline.models.load import model  # noqa: E402
from ridgeline.runtime.bringup import supervise  # noqa: E402
from ridgeline.runtime.bringup.subject import (  # noqa: E402
    decode,
    prefill,
    stage_subject,
)
from ridgeline.runtime.bringup.target import narrow_model, one_of_each, two_layers  # noqa: E402
from ridgeline.runtime.bringup.testbed import (  # noqa: E402
    DrawSpread,
    Exact,
    bisect_ops,
    grouped_product,
)

FAULTS = """
import torch

CALLS = [0]
ORDERS = torch.Generator().manual_seed(3)


def fault_sees_the_next_token(op, args, kwargs, result):
    if op == "aten.tril.default":
        return torch.tril(args[0], 1)


def fault_now_and_then(op, args, kwargs, result):
    if op == "aten.silu.default":
        CALLS[0] += 1
        if CALLS[0] % 5 == 0:
            wrong = result.clone()
            wrong.view(-1)[:3] = 7.0
            return wrong


def fault_another_order(op, args, kwargs, result):
    if op == "aten.mm.default" and result.dtype == torch.float32:
        order = torch.randperm(args[0].shape[1], generator=ORDERS)
        return args[0][:, order] @ args[1][order]
"""


def run(tmp_path: Path, fault: str, *only: str) -> supervise.BringUp:
    path = tmp_path / "faults.py"
    path.write_text(FAULTS, encoding="utf-8")
    given = {"faults": path, "fault": fault} if fault else {}
    return supervise.bringup(model("qwen3-0.6b"), "ridge", only=only, folder=tmp_path / "out", **given)


@pytest.mark.slow
def test_a_right_device_climbs_the_ladder(tmp_path: Path) -> None:
    found = run(tmp_path, "", "ladder", "invariances", "determinism")
    assert found.findings == ()
    rungs = {(one.name, one.format): one.verdict for one in found.ladder}
    assert set(rungs.values()) == {"pass"}
    assert len(rungs) == 12
    told = {one.name: one for one in found.invariances if one.format == "fp32"}
    ran = {name for name, one in told.items() if one.verdict == "pass"}
    assert ran == {"batch", "padding", "causal", "rotary", "microbatch", "recompute", "decode"}
    assert all(told[name].verdict == "not run" and told[name].reason for name in ("compiled", "parallel"))
    assert found.determinism.same
    assert found.determinism.runs == 3


def test_a_leak_is_an_invariance_that_fails_and_bisection_names_the_op(tmp_path: Path) -> None:
    found = run(tmp_path, "sees_the_next_token", "invariances")
    failed = {one.name: one for one in found.invariances if one.format == "fp32" and one.verdict == "fail"}
    assert {"causal", "padding"} <= set(failed)
    assert {one.op for one in failed.values()} == {"aten.tril.default"}
    (finding,) = {one.op: one for one in found.findings}.values()
    assert finding.op == "aten.tril.default"
    assert finding.statistic in failed
    assert finding.module == "layers.0.mixer"
    assert Path(finding.repro).is_file()


@pytest.mark.slow
def test_a_race_is_told_from_another_order(tmp_path: Path) -> None:
    race = run(tmp_path, "now_and_then", "determinism")
    assert race.determinism.races == ("aten.silu.default",)
    assert {one.statistic for one in race.findings} == {"race"}
    order = run(tmp_path, "another_order", "determinism")
    assert order.determinism.reordered == ("aten.mm.default",)
    assert order.findings == ()
    assert not order.determinism.same


def test_bisection_takes_the_logarithm_of_the_ops() -> None:
    tried: list[int] = []

    def right(at: int) -> bool:
        tried.append(at)
        return at <= 617

    assert bisect_ops(right, 1000) == 617
    assert len(tried) <= 11
    assert bisect_ops(lambda at: False, 1000) is None


def test_limits_grow_with_the_spread_of_right_devices() -> None:
    source = torch.Generator().manual_seed(0)
    exact = torch.randn(32, 64, generator=source, dtype=torch.float64)
    noise = lambda size: exact + size * torch.randn(exact.shape, generator=source, dtype=torch.float64)  # noqa: E731
    spread = DrawSpread(exact={"y": exact}, draws=[{"y": noise(1e-3)} for _ in range(6)])
    assert spread.judge_value("y", noise(1e-3)).right
    assert not spread.judge_value("y", noise(1e-2)).right
    wide = DrawSpread(exact={"y": exact}, draws=[{"y": noise(1e-2)} for _ in range(6)])
    assert wide.judge_value("y", noise(1e-2)).right


def test_a_cache_gives_the_logits_of_the_whole_sequence() -> None:
    for id in ("qwen3-0.6b", "deepseek-v2-lite", "gpt2"):
        small = narrow_model(two_layers(one_of_each(model(id))), 64)
        subject = stage_subject(small, "fp32", "cpu")
        subject.module.double()
        (tokens,) = subject.inputs
        with Exact(), torch.no_grad():
            whole = subject.module(tokens)
            logits, cache = prefill(subject.module, tokens[:, :11])
            rows = [logits]
            for place in range(11, tokens.shape[1]):
                logits, cache = decode(subject.module, tokens[:, place : place + 1], cache)
                rows.append(logits)
        assert torch.allclose(torch.cat(rows, 1), whole, rtol=0, atol=1e-12), id


def test_products_of_experts_in_64_bits_are_those_of_torch() -> None:
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    a, b, g = torch.randn(8, 16), torch.randn(3, 16, 32), torch.randn(8, 32)
    for ours, theirs in (
        (grouped_product(a, b, ends), torch.ops.aten._grouped_mm(a, b, ends)),
        (grouped_product(a.mT, g, ends), torch.ops.aten._grouped_mm(a.mT, g, ends)),
    ):
        assert torch.allclose(ours, theirs, atol=1e-4)
