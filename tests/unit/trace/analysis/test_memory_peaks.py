"""The peak of memory names its op and phase, on traces whose answers are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from spans import Sketch

from ridgeline.trace.analyze_traces import analyze


class TestMemory:
    def test_the_peak_names_its_op_and_sums(self, tmp_path: Path) -> None:
        sketch = Sketch().add("cpu_op", "aten::linear", (900, 900), 0, 50).add("cpu_op", "aten::mm", (900, 900), 5, 30)
        sketch.add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", (900, 901), 100, 50)
        sketch.launched("gemm", 6, 10, 20)
        for at, total in ((1, 1000), (10, 1500), (60, 1400), (110, 2400), (140, 900)):
            sketch.memory(at, total)
        (found,) = analyze(sketch.write(tmp_path)).memory
        assert (found.peak_bytes, found.first_bytes, found.phase) == (2400.0, 1000.0, "backward")
        assert found.op == "autograd::engine::evaluate_function: MmBackward0"
        assert found.growth_by_phase == {"backward": 1000.0, "forward": 400.0}
        assert found.growth_by_op == {
            "autograd::engine::evaluate_function: MmBackward0": 1000.0, "aten::linear": 500.0, "outside any op": -100.0,
        }  # fmt: skip
        assert found.first_bytes + sum(found.growth_by_op.values()) == pytest.approx(found.peak_bytes)
