"""Flow arrows: launches without correlation ids, and the forward op of an autograd node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from spans import Sketch

from ridgeline.trace.analysis.phases import PHASES, layers, phases
from ridgeline.trace.classes import classify
from ridgeline.trace.read.chrome_columns import BACKWARD, LAUNCH, Flows
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Timeline

HOST, AUTOGRAD = (900, 900), (900, 901)


class TestLaunches:
    def sketch(self, *, correlated: bool) -> Sketch:
        """Two calls and two kernels; arrows cross: the first call launched the second kernel."""
        sketch = Sketch()
        for place in (0, 1):
            sketch.call("cudaLaunchKernel", 10 * place, 2, link=place + 1 if correlated else 0)
            sketch.kernel("gemm", 100 + 50 * place, 40, link=place + 1 if correlated else 0)
        sketch.arrow("ac2g", 7, (900, 900, 0.0), (0, 7, 150.0)).arrow("ac2g", "x", (900, 900, 10.0), (0, 7, 100.0))
        return sketch

    def starts(self, line: Timeline) -> dict[int, int]:
        """Start of every kernel and of its call, in microseconds from the first."""
        rows = np.flatnonzero(line.launch >= 0)
        at = line.start_ns // 1000
        return dict(zip(at[rows].tolist(), at[line.launch[rows]].tolist(), strict=True))

    def test_arrows_link_what_has_no_correlation_id(self, tmp_path: Path) -> None:
        line = self.sketch(correlated=False).read(tmp_path)
        assert self.starts(line) == {100: 10, 150: 0}
        assert "flow arrows" not in line.about.dropped

    def test_correlation_ids_decide_where_there_are_any(self, tmp_path: Path) -> None:
        line = self.sketch(correlated=True).read(tmp_path)
        assert self.starts(line) == {100: 0, 150: 10}
        assert line.about.dropped["flow arrows"] == 4

    def test_arrows_that_lead_nowhere(self, tmp_path: Path) -> None:
        sketch = Sketch().call("cudaLaunchKernel", 0, 2).kernel("gemm", 100, 40)
        sketch.arrow("ac2g", 1, (900, 900, 50.0), (0, 7, 100.0)).arrow("ac2g", 2, (1, 1, 0.0), (0, 7, 100.0))
        assert (sketch.read(tmp_path).launch == -1).all()

    def test_what_is_dropped_is_counted(self) -> None:
        flows = Flows()
        assert flows.drop(LAUNCH) == 0
        assert flows.wanted == {BACKWARD}


class TestForward:
    def line(self, folder: Path, *, arrows: bool, threads: tuple[int, int] = AUTOGRAD) -> Timeline:
        """Three blocks forward, recorded as modules; backward runs block 2, then 0, then 1: no period tells that."""
        sketch = Sketch()
        for block in range(3):
            at = 100.0 * block
            sketch.add("python_function", f"nn.Module: Block_{block}", HOST, at, 90)
            sketch.add("cpu_op", "aten::mm", HOST, at + 10, 30)
            sketch.launched("gemm", at + 12, at + 20, 50)
        for place, block in enumerate((2, 0, 1)):
            at = 1000.0 + 100 * place
            sketch.add("cpu_op", f"node{place}", threads, at, 80).add("cpu_op", "aten::mm", threads, at + 10, 40)
            sketch.call("cudaLaunchKernel", at + 12, 2, 90 + place, threads[1]).kernel("gemm", at + 20, 50, 90 + place)
            if arrows:
                sketch.arrow("fwdbwd", place + 1, (*HOST, 100.0 * block + 10), (*threads, at))
        return classify(read_timeline(sketch.write(folder)))

    @pytest.mark.parametrize("arrows", [True, False])
    def test_backward_has_the_layer_of_its_forward_op(self, arrows: bool, tmp_path: Path) -> None:
        line = self.line(tmp_path, arrows=arrows)
        work = np.flatnonzero(line.is_work)
        phase = phases(line, work)
        assert [PHASES[code] for code in phase] == ["forward"] * 3 + ["backward" if arrows else "forward"] * 3
        assert layers(line, work, phase).tolist() == [0, 1, 2, *([2, 0, 1] if arrows else [-1, -1, -1])]

    def test_links_survive_joining_ranks(self, tmp_path: Path) -> None:
        self.line(tmp_path, arrows=True)
        Sketch(rank=1, world=2).launched("gemm", 3, 5, 10).write(tmp_path)
        line = classify(read_timeline(tmp_path))
        links = line.detail.forward
        assert [line.names[line.name[row]] for row in links.rows.tolist()] == ["node0", "node1", "node2"]
        assert (line.start_ns[links.values] // 1000 - line.start_ns.min() // 1000).tolist() == [210, 10, 110]
