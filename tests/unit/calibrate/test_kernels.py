"""Measured kernels: read as their sources count, priced without their own figure, skipped with a reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ridgeline.calibrate.kernels import (
    PublishedKernel,
    bundled_kernels,
    group_of,
    is_own,
    kernel_of,
    price_kernels,
    validate_kernels,
)
from ridgeline.calibrate.profile_sources import folder_of, is_kept, refuse_other_chip
from ridgeline.calibrate.truth.rows import Row, Skipped
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation, ValidationReport, errors_of
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError
from ridgeline.cost.profile import Measurement, Profile
from ridgeline.hardware.load import CHIPS, chip
from ridgeline.ir.kernel import Kernel
from ridgeline.report.validate_html import validation_page

CELLS = {
    "id": "mine-1", "source": "me", "accelerator": "H200", "kernel": "gemm", "library_version": "torch",
    "precision": "bf16", "shape": "4096x4096x4096", "causal": "0", "direction": "fwd", "metric": "latency",
    "value": "200", "unit": "us", "notes": "", "x_chip": "h200-sxm",
}  # fmt: skip


def read(**changes: str) -> PublishedKernel | Skipped:
    cells = {**CELLS, **changes}
    return kernel_of(Row(id=cells["id"], table="mine.csv", cells=cells))


def usable(**changes: str) -> PublishedKernel:
    found = read(**changes)
    assert isinstance(found, PublishedKernel), found
    return found


@pytest.fixture(scope="module")
def bundled() -> Validation:
    return validate("kernels")


class TestRows:
    def test_a_product(self) -> None:
        found = usable().kernel
        assert (found.op, found.impl, found.dtype, dict(found.dims)) == (
            "gemm",
            "torch",
            "bf16",
            {"m": 4096, "n": 4096, "k": 4096},
        )
        assert found.seconds == pytest.approx(200e-6)

    def test_a_rate_counts_as_its_source_does(self) -> None:
        causal = usable(
            kernel="attention FlashAttention-2", library_version="FlashAttention-2", shape="seqlen=2048 headdim=128",
            causal="1", direction="fwd+bwd", value="100", unit="TFLOPS", x_chip="a100-80-sxm",
        ).kernel  # fmt: skip
        assert dict(causal.dims)["batch"] == 8
        assert dict(causal.dims)["heads"] == 16
        assert causal.seconds == pytest.approx(3.5 * 4 * 8 * 16 * 2048**2 * 128 / 2 / 100e12)

    def test_own_attention_shapes(self) -> None:
        found = usable(kernel="attn_decode", shape="b8h64kv8s2048d128", library_version="torch cudnn").kernel
        assert (found.op, found.impl, found.dims["query"], found.dims["key"]) == ("attention_decode", "cudnn", 1, 2048)

    @pytest.mark.parametrize(
        ("kernel", "shape", "op"),
        [
            ("rmsnorm", "512x4096", "rmsnorm"), ("add_rmsnorm", "16x4096", "add_rmsnorm"), ("swiglu", "8x8", "swiglu"),
            ("add", "16x16", "add"), ("copy", "16x16", "copy"), ("cross_entropy_fwd", "128x32000", "cross_entropy"),
            ("adamw_fused", "1000000", "adamw"), ("h2d", "1048576", "h2d"), ("d2h", "1048576", "d2h"),
            ("launch_eager", "20000", "launch"),
        ],
    )  # fmt: skip
    def test_every_kind_of_own_rows(self, kernel: str, shape: str, op: str) -> None:
        found = usable(kernel=kernel, shape=shape)
        assert found.kernel.op == op
        (price,) = price_kernels([found], {})
        assert 0 < price.seconds < 1

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"shape": "4096x4096"}, "shape"), ({"shape": "0x1x1"}, "above 0"), ({"shape": "1e9x1x1"}, "shape"),
            ({"value": "nan"}, "value"), ({"value": "-3"}, "value"), ({"unit": "parsecs"}, "unit"),
            ({"unit": "MB"}, "not a time"),
            ({"x_chip": "h300", "accelerator": ""}, "x_chip"), ({"precision": "fp3"}, "precision"),
            ({"kernel": "conv2d"}, "no formula"), ({"kernel": "GPT-3 layer op AllReduce_MHA"}, "collective"),
            ({"kernel": "attn_fwd", "shape": "b0h1kv1s1d1"}, "above 0"), ({"shape": "9" * 15 + "x1x1"}, "sizes up to"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_read_is_skipped(self, changes: dict[str, str], reason: str) -> None:
        found = read(**changes)
        assert isinstance(found, Skipped)
        assert reason in found.reason


class TestBundled:
    def test_every_row_is_predicted_or_refused(self, bundled: Validation) -> None:
        assert len(bundled.cases) + len(bundled.skipped) == 643
        assert len(bundled.cases) > 560
        assert all(item.reason for item in bundled.skipped)

    def test_other_chips_are_within_their_bound(self, bundled: Validation) -> None:
        own = {one.row.id: group_of(one.kernel) for one in bundled_kernels()}
        cases = [case for case in bundled.cases if not is_own(case.row) and own[case.row.id] != "memory"]
        found = errors_of(cases)
        assert found.mape is not None
        assert found.mape < 0.12

    def test_a_published_row_is_not_used_for_itself(self) -> None:
        one = next(item for item in bundled_kernels() if item.row.id.startswith("fa3"))
        (price,) = price_kernels([one], {})
        assert price.how == "library"
        assert price.distance > 0.05

    def test_a_profile_comes_first(self) -> None:
        one = usable()
        own = Measurement(kernel=Kernel(op="gemm", impl="torch", dtype="bf16", dims=one.kernel.dims), seconds=1.0)
        (price,) = price_kernels([one], {"h200-sxm": Profile(rows=(own,), chip="h200-sxm")})
        assert (price.how, price.seconds) == ("profile", pytest.approx(1.0))

    def test_the_sheet_and_the_page(self, bundled: Validation) -> None:
        sheet = to_json(ValidationReport(validation=bundled))
        json.dumps(sheet, allow_nan=False)
        assert sheet["kind"] == "kernels"
        assert all(case["low"] <= case["predicted"] <= case["high"] for case in sheet["cases"])
        assert "aic-gemm" in validation_page(bundled, "kernels")

    def test_every_chip_and_format_is_priced_or_refused(self) -> None:
        shapes = {"gemm": "64x64x64", "attn_fwd": "b1h8kv8s64d64", "attn_decode": "b1h8kv8s64d64", "rmsnorm": "8x8"}
        rows = [
            Row(id="x", table="", cells={**CELLS, "x_chip": id, "precision": dtype, "kernel": kernel, "shape": shape})
            for id in CHIPS
            for dtype in ("bf16", "fp8", "nvfp4", "int8")
            for kernel, shape in shapes.items()
        ]
        found = validate_kernels(rows, {})
        assert len(found.cases) + len(found.skipped) == len(rows)
        assert all(0 < case.predicted_s < 1 for case in found.cases)

    def test_a_table_is_known_by_its_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "whatever.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(CELLS))
            writer.writeheader()
            writer.writerow(CELLS)
        found = validate(path)
        assert (found.kind, [case.row.id for case in found.cases]) == ("kernels", ["mine-1"])
        assert abs(found.cases[0].residual) < 0.3


def test_a_profile_of_another_chip_is_refused() -> None:
    with pytest.raises(InputError, match="b200-sxm"):
        refuse_other_chip(Profile(rows=(), chip="b200-sxm"), [chip("h200-sxm")])


def test_tables_of_strangers() -> None:
    with pytest.raises(InputError):
        folder_of("h10000")
    assert is_kept(
        Measurement(
            kernel=Kernel(op="gemm", impl="trtllm", dtype="bf16", dims={"m": 64, "n": 4096, "k": 4096}), seconds=1
        )
    )
