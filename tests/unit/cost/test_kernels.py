"""What chips, libraries and recipes change about kernels, each by an amount worked out here by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from ridgeline import predict, scenario
from ridgeline.cost.calibration import default_calibration
from ridgeline.cost.kernels import flash_seconds
from ridgeline.hardware.load import chip
from ridgeline.ir.ops import Attend, Op, Stream
from ridgeline.lowering.program import lower
from ridgeline.plan.engine import engine
from ridgeline.sim.prediction import Prediction

DENSE: dict[str, Any] = {
    "model": "llama3-8b",
    "system": "8xh100-sxm",
    "workload": {"seq": 8192, "global_batch": 64},
    "plan": {"dp": 8, "shard": "zero1", "engine": "megatron-core"},
}
SPARSE: dict[str, Any] = {
    "model": "mixtral-8x7b",
    "system": "8xh100-sxm",
    "workload": {"seq": 4096, "global_batch": 64},
    "plan": {"dp": 8, "ep": 8, "shard": "zero1", "engine": "megatron-bridge"},
}


def bytes_of(ops: Iterable[Op], label: str) -> float:
    return float(sum(op.stream_bytes for op in ops if isinstance(op, Stream) and op.label == label))


def priced(base: dict[str, Any], *settings: str) -> Prediction:
    found = predict(scenario(base, settings))
    assert isinstance(found, Prediction)
    return found


def seconds(found: Prediction, name: str) -> float:
    return next(part.seconds for part in found.breakdown if part.name == name)


def test_attention_waits_for_the_slower_of_two_units() -> None:
    """Heads of 64: 256 flops and one exponential a score forward; 640 and 10 / 7 of one's time backward."""
    one = np.ones(1)
    forward, backward = (
        float(flash_seconds(one * 256e12, one * 64, one * back, one * 1e15, one * 2e12)[0]) for back in (0, 1)
    )
    assert forward == pytest.approx((0.256**2 + 0.5**2) ** 0.5)
    assert backward == pytest.approx((0.256**2 + (256 / 7 / 64 / 2) ** 2) ** 0.5)


def test_faster_exponentials_speed_attention_up() -> None:
    """llama3-8b has heads of 128: scores/s asked for are flops / 512 forward and / 896 backward, which has 2.5 times
    the flops and, with 320 keys beyond the 4096 visible instead of 160, 4416 / 4256 of the scores."""
    peak, back = 989e12, default_calibration().value("attention_back", chip("h100-sxm"), engine("megatron-core"))

    def relative(rate: float) -> float:
        forward = 4256 * (1 / peak**2 + 1 / (512 * rate) ** 2) ** 0.5
        return forward + 2.5 * 4416 * (1 / peak**2 + 1 / (896 * rate) ** 2) ** 0.5 / back

    slow, fast = (seconds(priced(DENSE, f"chip.exponentials={rate}"), "attention") for rate in ("2 THz", "8 THz"))
    assert fast / slow == pytest.approx(relative(8e12) / relative(2e12), rel=1e-6)


def test_matrix_rates_fall_with_flops_per_joule() -> None:
    power = default_calibration().value("power", chip("h100-sxm"), engine("megatron-core"))
    rated, capped = (seconds(priced(DENSE, f"chip.tdp={watts}"), "matmul") for watts in ("700 W", "350 W"))
    assert capped / rated == pytest.approx(2**power, rel=1e-6)


def test_a_graph_of_the_whole_iteration_keeps_activations_inside_products() -> None:
    plain, whole = (
        lower(scenario(SPARSE, [f"plan.graph={graph}", "plan.precision=fp8"])).sections[2] for graph in ("none", "full")
    )
    wide = 4096 * 2 * 14336  # token copies on a rank x expert width
    assert bytes_of(plain.forward, "activation") == 3 * wide * 2  # reads gate and value, writes one
    assert bytes_of(whole.forward, "activation") == 0
    assert bytes_of(plain.backward_input, "activation dX") == 5 * wide * 2
    assert bytes_of(whole.backward_input, "activation dX") == 2 * wide * 2  # gate and value, kept by the forward
    assert bytes_of(plain.forward, "cast for experts down") == wide * (2 + 1 + 1)  # read, written twice
    assert bytes_of(whole.forward, "cast for experts down") == wide * (1 + 1)
    books = [op.kernels for op in plain.forward if isinstance(op, Stream) and op.label == "expert bookkeeping"]
    assert books == [15.0]


def test_narrow_recipes_cast_every_gradient() -> None:
    layer = lower(scenario(DENSE, ["plan.precision=fp8"])).sections[2]
    tokens = 8192
    for label, width in (("qkv", 6144), ("attention out", 4096), ("up", 2 * 14336), ("down", 4096)):
        assert bytes_of(layer.backward_input, f"cast for {label} dX") == tokens * width * 4
    assert bytes_of(layer.forward, "cast for up") == tokens * 4096 * 2  # the norm wrote it narrow: nothing is read
    assert bytes_of(layer.forward, "cast for down") == tokens * 14336 * 4


def test_rows_of_tiles_cost_a_start() -> None:
    layer = lower(scenario(DENSE)).sections[2]
    each = 2 * 8192 * 32 * 256  # flops of one visible key: tokens x heads x (key + value size)
    forward = next(op for op in layer.forward if isinstance(op, Attend))
    backward = next(op for op in layer.backward_input if isinstance(op, Attend))
    assert forward.flops == pytest.approx(each * (4096.5 + 160), rel=1e-3)
    assert backward.flops == pytest.approx(2.5 * each * (4096.5 + 320), rel=1e-3)


def test_odd_widths_miss_the_matrix_unit() -> None:
    """An H100 has 132 cores; with operands 2 bytes at a time each reaches 0.93 TFLOP/s, 4 bytes at a time 2.1."""
    base = {**DENSE, "plan": {"dp": 8, "shard": "zero1", "engine": "generic"}}
    found = {vocab: seconds(priced(base, f"model.vocab={vocab}"), "matmul") for vocab in (50304, 50303, 50302)}
    executed = 2 * 8192 * 4096 * 50304 * 3 * 8  # forward and both gradients of the head, eight sequences a rank
    peak = 989e12 * default_calibration().value("matmul_wide", chip("h100-sxm"), engine("generic"))
    for vocab, rate in ((50303, 0.93e12), (50302, 2.1e12)):
        slower = executed * (1 / (132 * rate) - 1 / peak)
        assert found[vocab] - found[50304] == pytest.approx(slower, rel=0.1)  # tiles of the head are not exact


def test_odd_widths_cost_nothing_where_a_compiler_pads() -> None:
    base = {**DENSE, "system": "8xtpu-v5p", "plan": {"dp": 8, "shard": "zero1", "engine": "maxtext"}}
    even, odd = (seconds(priced(base, f"model.vocab={vocab}"), "matmul") for vocab in (50304, 50303))
    assert odd <= even
