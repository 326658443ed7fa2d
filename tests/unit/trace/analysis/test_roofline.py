"""Achieved rates against the roof of a chip, and the arithmetic that recorded shapes ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from traces import Recipe, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.classes import parents
from ridgeline.trace.timeline import RecordedShape, Span, Timeline

HEADS = ((1, 4, 8, 16),) * 4
IMAGE = ((2, 3, 8, 8), (6, 3, 3, 3), ())
SCALARS = ("",) * 11


def run(recipe: Recipe, folder: Path) -> Analysis:
    return analyze(write(make(recipe), folder / "t.json"))


class TestRates:
    def test_rate_and_roof_of_the_generated_product(self, tmp_path: Path) -> None:
        recipe = Recipe()
        found = run(recipe, tmp_path)
        assert found.chip is not None
        assert found.chip.id == "h100-sxm"
        (rate,) = (one for one in found.rates if one.op == "aten::mm")
        flops = 2 * 4096 * 4096 * 1024
        assert rate.flops == flops
        assert rate.flops_per_s == pytest.approx(flops / 100e-6)
        assert rate.size_bytes == 2 * (4096 * 1024 * 2 + 4096 * 4096)
        assert rate.bound == "compute"
        assert rate.efficiency == pytest.approx(flops / 989e12 / 100e-6, rel=0.01)

    def test_a_chip_can_be_named(self, tmp_path: Path) -> None:
        path = write(make(Recipe(chip="Something New")), tmp_path / "t.json")
        assert analyze(path).chip is None
        assert analyze(path).rates[0].efficiency is None
        named = analyze(path, chip="mi300x")
        assert named.chip is not None
        assert named.rates[0].efficiency is not None
        with pytest.raises(InputError, match="mi300x"):
            analyze(path, chip="mi300xx")

    @pytest.mark.parametrize(
        ("op", "dims", "concrete", "flops"),
        [
            ("aten::addmm", ((7,), (3, 5), (5, 7)), (), 2 * 3 * 5 * 7),
            ("aten::bmm", ((2, 3, 5), (2, 5, 7)), (), 2 * 2 * 3 * 5 * 7),
            ("aten::linear", ((2, 3, 5), (7, 5)), (), 2 * 6 * 5 * 7),
            ("aten::_scaled_dot_product_flash_attention", HEADS[:3], (*SCALARS[:4], "True"), 2 * 4 * 8 * 8 * 32 / 2),
            ("aten::_scaled_dot_product_flash_attention", HEADS[:3], (*SCALARS[:4], "False"), 2 * 4 * 8 * 8 * 32),
            ("aten::_scaled_dot_product_flash_attention_backward", HEADS, (*SCALARS, "False"), 5 * 4 * 8 * 8 * 32),
            ("aten::convolution", IMAGE, (*SCALARS[:3], "[1, 1]", "[1, 1]", "[1, 1]"), 2 * 2 * 6 * 64 * 27),
            ("aten::convolution", IMAGE, (*SCALARS[:3], "[2, 2]", "[0, 0]", "[1, 1]"), 2 * 2 * 6 * 9 * 27),
            ("aten::cudnn_convolution", IMAGE, (*SCALARS[:2], "[0, 0]", "[2, 2]", "[1, 1]", "1"), 2 * 2 * 6 * 9 * 27),
            ("aten::miopen_convolution", IMAGE, (*SCALARS[:3], "[0, 0]", "[2, 2]", "[1, 1]"), 2 * 2 * 6 * 9 * 27),
        ],
    )  # fmt: skip
    def test_formulas(
        self, op: str, dims: tuple[tuple[int, ...], ...], concrete: tuple[str, ...], flops: float
    ) -> None:
        found = op_kernel(op, RecordedShape(dims=dims, types=("float",) * len(dims), concrete=concrete))
        assert found is not None
        assert found.flops == flops

    @pytest.mark.parametrize("dims", [(), ((3,),), ((3, 4), (5, 6)), ((3, 4), ((4, 5),))])
    def test_operands_that_do_not_fit_have_no_rate(self, dims: tuple[tuple[int, ...], ...]) -> None:
        assert op_kernel("aten::mm", RecordedShape(dims=dims, types=("float",) * 2)) is None

    def test_nesting_by_hand(self) -> None:
        times = {"a": (0, 100), "b": (10, 40), "c": (12, 20), "d": (30, 35), "e": (60, 90), "f": (200, 210)}
        spans = [
            Span(process="p", stream="t", name=name, kind="host", start_ns=start, duration_ns=end - start)
            for name, (start, end) in times.items()
        ]
        line = Timeline.of([*spans, replace(spans[1], stream="other")])
        names = [line.names[code] for code in line.name]
        above = parents(line)
        tree = {
            (names[row], line.streams[line.stream[row]]): names[above[row]] if above[row] >= 0 else ""
            for row in range(len(line))
        }
        assert tree == {
            ("a", "t"): "", ("b", "t"): "a", ("c", "t"): "b", ("d", "t"): "b", ("e", "t"): "a", ("f", "t"): "",
            ("b", "other"): "",
        }  # fmt: skip
