"""Profiles: read from hostile files, compared, merged, turned into prices that know how far they were stretched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.calibrate.profile_sources import profiles_of
from ridgeline.core.errors import InputError
from ridgeline.core.evidence import Evidence
from ridgeline.cost.calibration import default_calibration
from ridgeline.cost.kernels import ChipRates
from ridgeline.cost.machine import ParameterColumns
from ridgeline.cost.profile import (
    Measurement,
    Profile,
    is_profile,
    profile_for,
    read_profile,
    save_fingerprint,
)
from ridgeline.cost.profile_compare import diff_profiles, merge_profiles, slow_chips
from ridgeline.cost.profile_prices import END, REACH, Surface, kernel_columns, product_state, roof_and_place
from ridgeline.hardware.load import chip
from ridgeline.ir.kernel import Kernel
from ridgeline.plan.scenario_file import scenario
from ridgeline.sim.predict_step import estimate, predict
from ridgeline.sim.prediction import Prediction
from ridgeline.sim.step_batch import StepBatch

H200 = ChipRates.of(chip("h200-sxm"))
TABLE = {
    "model": "llama3-8b",
    "system": "1xh200-sxm",
    "workload": {"seq": 4096, "global_batch": 1},
    "plan": {"engine": "torch-eager"},
}


def gemm(m: int, n: int, k: int, rate: float = 600e12, **more: Any) -> Measurement:
    kernel = Kernel(op="gemm", impl="torch", dtype="bf16", dims={"m": m, "n": n, "k": k})
    return Measurement(kernel=kernel, seconds=2.0 * m * n * k / rate, **more)


def profile(*rows: Measurement, name: str = "H200") -> Profile:
    return Profile(rows=rows, chip="h200-sxm", device={"name": name}, taken="2025-01-01")


def table(**changes: Any) -> dict[str, Any]:
    row = {
        "op": "gemm",
        "impl": "torch",
        "dtype": "bf16",
        "m": 1,
        "n": 2,
        "k": 3,
        "s": 1e-6,
        "spread": 0.01,
        "ok": True,
    }
    return {"ridgeline_profile": 1, "chip": "h200-sxm", "device": {"name": "x"}, "rows": [row | changes]}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


PRODUCTS = {"factor_bits": 8, "bits": 20.5, "sums": "toward zero", "lean": -1e-7}
PRINT = {
    "products": {"bf16": PRODUCTS}, "cast": "nearest, ties to even", "denormals": {"fp32": "kept"}, "fma": True,
    "functions": {"exp": {"ulp": 1.5, "bias": 0.01}}, "fp8": {"e4m3fn": "448, beyond: NaN"},
}  # fmt: skip


class TestFingerprint:
    def test_it_is_stored_beside_what_was_measured(self, tmp_path: Path) -> None:
        content = {**table(), "minutes": 8.6, "timer": "graph"}
        path = write(tmp_path / "a.json", content)
        assert read_profile(path).fingerprint == {}
        save_fingerprint(path, PRINT)
        again = json.loads(path.read_text())
        assert again.pop("fingerprint") == PRINT
        assert again == content
        assert is_profile(path)
        assert read_profile(path).fingerprint == PRINT
        assert read_profile(write(tmp_path / "b.json", read_profile(path).text())).fingerprint == PRINT
        with pytest.raises(InputError, match="has a fingerprint"):
            save_fingerprint(path, PRINT)
        with pytest.raises(InputError, match="one of products"):
            save_fingerprint(write(path, content), {"other": 1})
        assert json.loads(path.read_text()) == content

    def test_what_differs_is_told(self) -> None:
        one = replace(profile(gemm(1, 1, 1)), fingerprint=PRINT)
        near = {**PRINT, "products": {"bf16": PRODUCTS | {"bits": 20.1}}}
        other = {**near, "fma": False, "products": {"bf16": PRODUCTS | {"sums": "nearest"}}}
        assert diff_profiles(one, replace(one, fingerprint=near)).facts == {}
        assert diff_profiles(one, replace(one, fingerprint={})).facts == {}
        assert diff_profiles(one, replace(one, fingerprint=other)).facts == {
            "fingerprint.products.bf16.sums": ("toward zero", "nearest"),
            "fingerprint.fma": ("True", "False"),
        }
        assert merge_profiles([one, replace(one, fingerprint={})]).fingerprint == PRINT
        assert merge_profiles([one, replace(one, fingerprint=other)]).fingerprint == {}


class TestFile:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        rows = (
            gemm(64, 128, 256, spread=0.03, runs=7),
            Measurement(kernel=Kernel(op="copy", impl="", dtype="", dims={"bytes": 9}), seconds=0.0, error="no"),
        )
        path = write(tmp_path / "a.json", profile(*rows).text())
        again = read_profile(path)
        assert is_profile(path)
        assert [row.name for row in again.rows] == [row.name for row in rows]
        assert (again.rows[0].spread, again.rows[0].runs, again.rows[1].error) == (0.03, 7, "no")
        assert len([line for line in path.read_text().splitlines() if '"op"' in line]) == 2

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ({"rows": []}, "version 1"),
            ({"ridgeline_profile": 2, "rows": []}, "version 1"),
            ({"ridgeline_profile": 1}, "a list"),
            ({"ridgeline_profile": 1, "rows": [3]}, "`op`"),
            (table(m=-1), "whole number"),
            (table(m="64"), "whole number"),
            (table(s=-1), "number from 0"),
            (table(s=1e9), "seconds"),
            (table(rank=-2), "whole number"),
            (table() | {"fingerprint": []}, "a table of products"),
            (table() | {"fingerprint": {"sums": "nearest"}}, "one of products"),
            (table() | {"fingerprint": {"products": {"bf16": {"bits": 20.0}}}}, "factor_bits, bits, sums, lean"),
            (table() | {"fingerprint": {"products": {"bf16": PRODUCTS | {"sums": "up"}}}}, "toward zero"),
            (table() | {"fingerprint": {"products": {"bf16": PRODUCTS | {"bits": True}}}}, "a number from 0"),
            (table() | {"fingerprint": {"products": {"bf16": PRODUCTS | {"factor_bits": 8.5}}}}, "whole number"),
            (table() | {"fingerprint": {"functions": {"exp": {"ulp": -1, "bias": 0}}}}, "number from 0"),
            (table() | {"fingerprint": {"fp8": {"e4m3fn": "x" * 10_000}}}, "60 characters"),
            (table() | {"fingerprint": {"denormals": {str(k): "kept" for k in range(99)}}}, "at most 40"),
            (table() | {"fingerprint": {"fma": "yes"}}, "true, false or null"),
            ('{"ridgeline_profile": 1, "rows": [{"op": "gemm", "s": NaN}]}', "plain JSON"),
            ("[" * 100_000, "plain JSON"),
            ("not json", "JSON"),
        ],
    )
    def test_hostile_files_are_refused(self, tmp_path: Path, content: Any, expected: str) -> None:
        with pytest.raises(InputError, match=expected):
            read_profile(write(tmp_path / "bad.json", content))

    def test_a_failed_row_prices_nothing(self, tmp_path: Path) -> None:
        found = read_profile(write(tmp_path / "a.json", table(ok=False, why="wrong result", error=1.0)))
        assert (found.of("gemm"), found.rows[0].error) == ((), "wrong result")

    def test_choices(self, tmp_path: Path) -> None:
        own = profile(gemm(1, 1, 1))
        assert profile_for(profiles_of(own), "h200-sxm") is own
        assert profile_for(profiles_of("none"), "h200-sxm") is None
        everywhere = replace(own, chip="")
        assert profile_for(profiles_of(everywhere), "mi300x") is everywhere
        with pytest.raises(InputError):
            profiles_of(tmp_path / "absent.json")


class TestSurface:
    grid = tuple(gemm(2**m, 2**n, 2**k, 500e12 + 1e12 * m) for m in (8, 10, 12) for n in (11, 13) for k in (11, 13))

    def price(self, *rows: Measurement) -> tuple[Any, Any]:
        surface = Surface.of(self.grid, H200)
        assert surface is not None
        roof, place = roof_and_place("gemm", "bf16", kernel_columns(rows), H200)
        ratio, distance = surface.read(np.column_stack([place, product_state(rows)]))
        return np.exp(ratio) * roof, distance

    def test_a_measured_kernel_speaks_for_itself(self) -> None:
        seconds, distance = self.price(*self.grid)
        assert np.allclose(seconds, [row.seconds for row in self.grid], rtol=0.02)
        assert np.allclose(distance, 0.0, atol=1e-6)

    def test_efficiency_stays_between_its_neighbours(self) -> None:
        odd = [gemm(m, 3000, 5000) for m in (300, 700, 1500, 3000)]
        surface = Surface.of(self.grid, H200)
        assert surface is not None
        roof, _ = roof_and_place("gemm", "bf16", kernel_columns(odd), H200)
        seconds, _ = self.price(*odd)
        ratios = np.log(seconds / roof)
        assert (ratios >= surface.ratios.min() - 1e-9).all()
        assert (ratios <= surface.ratios.max() + 1e-9).all()
        assert (np.diff(seconds) > 0).all()  # more rows never cost less

    def test_far_away_is_told(self) -> None:
        _, distance = self.price(gemm(4096, 2048, 2048), gemm(2**16, 2**17, 2**17))
        assert distance[0] < 1e-6 < REACH < END < distance[1]

    def test_no_surface_without_a_peak(self) -> None:
        rows = [replace(row, kernel=replace(row.kernel, dtype="fp4?")) for row in self.grid]
        assert Surface.of(rows, H200) is None


class TestPrices:
    def test_a_profile_moves_products_by_its_rate(self) -> None:
        built = scenario(TABLE)
        slow, fast = (
            replace(
                default_calibration(),
                profiles=profiles_of(
                    profile(
                        *[
                            gemm(2**m, 2**n, 2**k, rate)
                            for m in (10, 12)
                            for n in (10, 12, 14, 17)
                            for k in (10, 12, 14)
                        ]
                    )
                ),
            )
            for rate in (300e12, 600e12)
        )
        took = []
        for used in (slow, fast):
            found = predict(built, used)
            assert isinstance(found, Prediction)
            assert found.kernels is not None
            assert found.kernels.fitted < 0.3 < found.kernels.measured + found.kernels.interpolated
            took.append({part.name: part.seconds for part in found.breakdown}["matmul"])
        assert took[0] / took[1] == pytest.approx(2.0, rel=0.1)

    def test_without_a_profile_nothing_is_measured(self) -> None:
        built = scenario(TABLE)
        bare = replace(default_calibration(), profiles=profiles_of("none"))
        found = predict(built, bare)
        assert isinstance(found, Prediction)
        assert found.kernels is None
        assert all(one.estimate.evidence < Evidence.MEASURED for one in estimate(built, bare))

    def test_evidence_of_ops(self) -> None:
        used = replace(default_calibration(), profiles=profiles_of(profile(gemm(4096, 4096, 4096))))
        graded = {one.op.label: one.estimate.evidence for one in estimate(scenario(TABLE), used)}
        assert graded["attention out"] is Evidence.MEASURED
        assert graded["attention"] < Evidence.MEASURED

    def test_a_batch_of_rows_is_priced_as_one_prediction(self) -> None:
        grid = [gemm(2**m, 2**n, 2**k) for m in (10, 12) for n in (10, 12, 14) for k in (10, 12, 14)]
        copy = Measurement(kernel=Kernel(op="copy", impl="torch", dims={"bytes": 2**30}), seconds=2**31 / 4e12)
        used = replace(default_calibration(), profiles=profiles_of(profile(*grid, copy)))
        built = [scenario(TABLE), scenario({**TABLE, "system": "1xh100-sxm"})]
        steps = StepBatch.of(built, used.profiles).steps(ParameterColumns.of(used, built)).step_s
        for one, step in zip(built, steps, strict=True):
            found = predict(one, used)
            assert isinstance(found, Prediction)
            assert found.step_time_s == pytest.approx(float(step))
            assert (found.kernels is None) == ("h100" in one.system.name)

    def test_copies_set_the_share_of_memory(self) -> None:
        copies = [
            Measurement(kernel=Kernel(op="copy", impl="torch", dims={"bytes": 2**30}), seconds=2 * 2**30 / rate)
            for rate in (2.4e12,)
        ]
        used = replace(default_calibration(), profiles=profiles_of(profile(*copies)))
        quick, slow = predict(scenario(TABLE), default_calibration()), predict(scenario(TABLE), used)
        assert isinstance(quick, Prediction)
        assert isinstance(slow, Prediction)
        assert slow.step_time_s > quick.step_time_s


class TestCompare:
    def test_what_differs_beyond_its_spread(self) -> None:
        before = profile(gemm(64, 64, 64, spread=0.05), gemm(128, 64, 64, spread=0.01), gemm(256, 64, 64), name="A")
        after = profile(
            gemm(64, 64, 64, 620e12, spread=0.05), gemm(128, 64, 64, 500e12, spread=0.01), gemm(512, 64, 64), name="B"
        )
        found = diff_profiles(before, after)
        assert [row.name.split()[3] for row in found.different] == ["m=128"]
        assert (found.only, dict(found.facts)) == ((1, 1), {"device.name": ("A", "B")})
        group = found.groups[0]
        assert (group.name, group.rows, group.slower, group.faster) == ("products", 2, 1, 0)
        assert group.ratio == pytest.approx((600 / 620 * 600 / 500) ** 0.5)

    def test_a_slow_chip_is_named(self) -> None:
        shapes = [(2**m, 1024, 1024) for m in range(6, 12)]
        jitter = np.random.default_rng(0)
        nodes = [
            profile(
                *[
                    gemm(*shape, 600e12 * (0.9 if node == 5 else 1.0) * (1 + 0.003 * jitter.standard_normal()))
                    for shape in shapes
                ]
            )
            for node in range(8)
        ]
        merged = merge_profiles(nodes)
        assert {row.rank for row in merged.rows} == set(range(8))
        (slow,) = slow_chips(merged)
        assert (slow.rank, slow.kernels) == (5, 6)
        assert slow.loses == pytest.approx(0.11, abs=0.02)
        assert slow_chips(merge_profiles(nodes[:5])) == ()

    def test_chips_of_two_kinds_do_not_merge(self) -> None:
        with pytest.raises(InputError, match="one chip"):
            merge_profiles([profile(gemm(1, 1, 1)), replace(profile(gemm(1, 1, 1)), chip="b200-sxm")])

    def test_ceilings(self) -> None:
        rows = (gemm(4096, 4096, 4096, 700e12, figures={"power_w": 700.0}), gemm(64, 64, 64, 1e12))
        (best,) = profile(*rows).ceilings(chip("h200-sxm"))
        assert (best.name, best.measured, best.datasheet) == ("product bf16", pytest.approx(700e12), 989e12)
        assert best.joules == pytest.approx(1e-12)
