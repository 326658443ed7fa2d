"""The page of an op graph: it says what the report says, and text of a stranger stays text."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.graph import GraphReport, region
from ridgeline.hardware.load import chip
from ridgeline.report import page


def test_a_page_says_what_could_be_fused() -> None:
    graph = region("residual+rmsnorm", 4096, 4096).graph
    written = page(GraphReport(graph=graph, chip=chip("h200-sxm")), "ridgeline graph x --on h200-sxm")
    assert "What could be fused in residual+rmsnorm" in written
    assert "What could be fused, the largest gain first" in written
    assert "NVIDIA" in written or "H200" in written


def test_names_of_strangers_are_text() -> None:
    graph = region("swiglu", 16, 16).graph
    bad = "</script><script>alert(1)</script>"
    hostile = replace(graph, name=bad, ops=tuple(replace(op, name=bad, module=bad) for op in graph.ops))
    assert "<script>alert" not in page(GraphReport(graph=hostile), bad)
