"""What recordings of real chips do and planted traces did not: slow hosts, calls that return early, two causes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from planted_machine import ELEMENT, PAGEABLE, Rank
from traces import write

import ridgeline
from ridgeline.trace.analyze_traces import Analysis

FUSED = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4, false>>(int)"


def analysed(path: Path, program: Callable[[Rank], None], host_us: float = 9.0) -> Analysis:
    rank = Rank()
    rank.host_us = host_us
    for _ in range(3):
        with rank.step():
            program(rank)
    return ridgeline.analyze(write(rank.whole(), path / "trace.json"))


@pytest.mark.parametrize(("launches", "cause"), [(8, "synchronisation"), (200, "host")])
def test_a_wait_owns_the_gaps_until_the_queue_is_filled_again(tmp_path: Path, launches: int, cause: str) -> None:
    """A host slower than its kernels: a wait behind every few launches is to blame, one behind hundreds is not."""

    def program(rank: Rank) -> None:
        for _ in range(400 // launches):
            for _ in range(launches):
                rank.op("aten::add", ELEMENT, 10.0)
            rank.item()

    found = analysed(tmp_path, program, host_us=25.0).findings
    assert found[0].what.startswith(f"idle, {cause}"), found[0].what
    if cause == "synchronisation":
        assert "cudaStreamSynchronize of aten::" in found[0].what
        assert found[0].predicted_gain < 0.8 * found[0].share_of_step  # the host is slow without waits as well
        assert "launches are late as well" in found[0].action


def test_gaps_behind_a_full_queue_are_not_the_waits(tmp_path: Path) -> None:
    """Behind a wait the host gets ahead; a gap that comes then is its own."""

    def program(rank: Rank) -> None:
        for _ in range(12):
            rank.op("aten::mm", ELEMENT, 300.0)
            rank.op("aten::add", ELEMENT, 100.0)
            rank.busy(900.0)
            rank.op("aten::add", ELEMENT, 100.0)
            rank.item()

    idle = {one.cause: one.idle_ns for one in analysed(tmp_path, program).idle}
    assert idle["host"] > 10 * idle["synchronisation"]


def test_a_staged_copy_returns_before_its_last_bytes_arrive(tmp_path: Path) -> None:
    def program(rank: Rank) -> None:
        rank.copy("HtoD (Pageable -> Device)", 60e6, PAGEABLE)
        rank.events[-2]["dur"] -= 8.0  # of the call: it ends 6 us before the copy
        assert rank.events[-2]["name"] == "cudaMemcpyAsync"
        for _ in range(6):
            rank.layer(8192, 2048)

    first = analysed(tmp_path, program).findings[0]
    assert first.what.startswith("copies host to device, pageable memory")
    assert first.predicted_gain > 0.35


def test_an_optimizer_in_pieces_is_named_in_a_step_that_is_late_elsewhere(tmp_path: Path) -> None:
    def program(rank: Rank) -> None:
        for _ in range(300):
            rank.op("aten::mul", ELEMENT, 10.0)
        with rank.inside("Optimizer.step#AdamW.step"):
            for _ in range(400):
                rank.op("aten::mul_", ELEMENT, 4.0)

    found = {one.rule: one for one in reversed(analysed(tmp_path, program, host_us=25.0).findings)}
    optimizer, late = found["unfused_optimizer"], found["launches_late"]
    assert optimizer.predicted_gain > late.predicted_gain > 0.1
    assert optimizer.share_of_step + late.share_of_step < 1  # no gap is told twice
    assert "waits for the next launch" in optimizer.what


def test_who_has_a_fused_optimizer_is_not_told_to_get_one(tmp_path: Path) -> None:
    def program(rank: Rank) -> None:
        rank.layer(2048, 1024)
        with rank.inside("Optimizer.step#AdamW.step"):
            rank.busy(3000.0)
            rank.op("aten::_fused_adamw_", FUSED, 90.0)

    first = analysed(tmp_path, program).findings[0]
    assert "Optimizer.step" in first.what
    assert "fused=True" not in first.action


def test_no_gain_is_promised_where_no_rate_is_known(tmp_path: Path) -> None:
    """Weights of four bits are unpacked: such products are no slow plain ones."""

    def program(rank: Rank) -> None:
        dims, types = [[4096, 4096], [4096, 4096]], ["c10::BFloat16"] * 2
        for _ in range(8):
            rank.op("aten::mm", "void marlin::Marlin<nv_bfloat16, int4>(int)", 600.0, dims=dims, types=types)

    found = {one.rule: one for one in analysed(tmp_path, program).findings}
    assert "slow_products" not in found
    assert found["unpacked_weights"].predicted_gain == 0
    assert found["unpacked_weights"].share_of_step > 0.9
