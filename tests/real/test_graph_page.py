"""The page of `ridgeline graph -o FILE.html` in a real browser: twenty thousand ops open at once and unfold."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from browser import browser, needs_browser

from ridgeline.graph import GraphReport, region
from ridgeline.hardware.load import chip
from ridgeline.ir.op_graph import GraphFusion, GraphOp, OpGraph
from ridgeline.report import page

pytestmark = needs_browser
LAYERS = 400


def large_graph() -> OpGraph:
    """Layers of one region after the other: 20,000 ops."""
    part = region("residual+rmsnorm", 256, 1024).graph
    ops: list[GraphOp] = []
    tensors = []
    fusions: list[GraphFusion] = []
    for layer in range(LAYERS):
        for half in ("mixer", "ffn"):
            first, base = len(ops), len(tensors)
            tensors += [
                replace(tensor, id=tensor.id + base, alias_of=tensor.alias_of + base if tensor.alias_of >= 0 else -1)
                for tensor in part.tensors
            ]
            ops += [
                replace(
                    op, id=op.id + first, module=f"layers.{layer}.{half}", fusion=len(fusions),
                    inputs=tuple(n + base for n in op.inputs), outputs=tuple(n + base for n in op.outputs),
                )
                for op in part.ops
            ]  # fmt: skip
            numbers = tuple(op.id for op in ops[first:])
            fusions.append(GraphFusion(id=len(fusions), name="<b>norm</b>", ops=numbers))
    return replace(part, ops=tuple(ops), tensors=tuple(tensors), fusions=tuple(fusions))


def test_twenty_thousand_ops_open_and_unfold(tmp_path: Path) -> None:
    graph = large_graph()
    assert len(graph.ops) >= 20_000
    target = tmp_path / "graph.html"
    target.write_text(page(GraphReport(graph=graph), "ridgeline graph"), encoding="utf-8")
    with browser(tmp_path) as shown:
        begin = time.monotonic()
        shown.go(target.as_uri())
        assert shown.run("return document.title").endswith("| Ridgeline graph")
        assert time.monotonic() - begin < 20
        assert shown.complaints() == []
        assert shown.run("return performance.getEntriesByType('resource').length") == 0
        shown.run("document.querySelector('#tree button.module').click()")  # layers
        assert shown.run("return document.querySelectorAll('#tree .branch > div > button.module').length") == 300
        shown.run("document.querySelector('#tree button.more').click()")
        assert shown.run("return document.querySelectorAll('#tree .branch > div > button.module').length") == LAYERS
        for _ in range(2):  # the first layer, its mixer
            shown.run("[...document.querySelectorAll('#tree button[aria-expanded=false]')][0].click()")
        assert shown.run("return document.querySelectorAll('#tree .region').length") >= 1
        assert shown.run("return document.querySelector('#tree .region p').textContent") == "<b>norm</b>"
        shown.run("document.querySelector('#tree button.op').click()")
        assert "runs a step" in shown.run("return document.getElementById('told').textContent")
        assert shown.complaints() == []


def test_a_chip_colours_by_time_and_outlines_regions(tmp_path: Path) -> None:
    graph = region("linear+gelu", 1024, 1024).graph
    target = tmp_path / "graph.html"
    target.write_text(page(GraphReport(graph=graph, chip=chip("h200-sxm")), ""), encoding="utf-8")
    with browser(tmp_path) as shown:
        shown.go(target.as_uri())
        assert shown.complaints() == []
        kinds = shown.run("return [...document.querySelectorAll('#tree rect')].map(r => r.getAttribute('class'))")
        assert set(kinds) == {"compute", "memory"}
        assert "could be fused" in shown.run("return document.body.textContent")
