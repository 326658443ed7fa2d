"""What one compiler fused and the other did not: parts of a program matched, kernels, bytes and seconds of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run

from ridgeline import graph
from ridgeline.compilers import read_program
from ridgeline.core.errors import InputError
from ridgeline.graph import GraphComparison, GraphReport
from ridgeline.graph.compare_graphs import LAYOUT
from ridgeline.graph.compiled_kernels import compiled_kernels
from ridgeline.hardware.load import chip

EXAMPLES = Path(__file__).parents[3] / "examples" / "compilers"
HIDDEN = 2 * 64 * 128 * 4


def compare(first: str, second: str) -> GraphComparison:
    answer = graph(str(EXAMPLES / first), compare=str(EXAMPLES / second), on="h200-sxm")
    assert isinstance(answer, GraphComparison)
    return answer


def test_a_kernel_reads_and_writes_what_lies_outside_of_it() -> None:
    kernels = {kernel.name: kernel for kernel in compiled_kernels(read_program(EXAMPLES / "mlp.tir.txt"))}
    norm = next(kernel for name, kernel in kernels.items() if "mean" in name)
    assert norm.bytes_read == 2 * HIDDEN + 128 * 4  # TVM squares in a kernel of its own: the squares and x
    assert norm.bytes_written == HIDDEN
    assert norm.access == "rows"
    assert any(kernel.access == "product" and len(kernel.ops) > 1 for kernel in kernels.values())


def test_rows_are_the_whole_of_both_programs() -> None:
    found = compare("attention.hlo", "attention.tir.txt")
    assert found.same
    assert found.first_s == pytest.approx(sum(row.first.seconds for row in found.rows))
    assert sum(row.first.kernels for row in found.rows) == 19
    assert sum(row.second.kernels for row in found.rows) == 13
    [attention] = [row for row in found.rows if row.work == "attention"]
    assert (attention.first.kernels, attention.second.kernels, attention.fuses_more) == (7, 3, "second")
    [layouts] = [row for row in found.rows if row.work == LAYOUT]
    assert layouts.difference_s == 0


def test_differences_turn_around_with_their_sides() -> None:
    one, other = compare("mlp.hlo", "mlp.tir.txt"), compare("mlp.tir.txt", "mlp.hlo")
    assert one.difference_s == pytest.approx(-other.difference_s)
    assert sorted((one.low_s, one.high_s)) == pytest.approx(sorted((-other.low_s, -other.high_s)))


def test_a_graph_beside_itself_differs_in_nothing() -> None:
    assert compare("mlp.hlo", "mlp.hlo").difference_s == 0


def test_other_programs_are_called_so() -> None:
    found = compare("mlp.hlo", "attention.hlo")
    assert not found.same
    assert any("not the same" in note for note in found.notes)


def test_a_fused_graph_is_priced_as_it_was_fused() -> None:
    apart, compiled = (graph(str(EXAMPLES / f"attention.{kind}"), on="h200-sxm") for kind in ("pt2", "hlo"))
    assert isinstance(apart, GraphReport) and isinstance(compiled, GraphReport)  # noqa: PT018
    assert apart.compiled_s is None
    assert compiled.compiled_s is not None and compiled.apart_s is not None  # noqa: PT018
    assert compiled.compiled_s < compiled.apart_s


def test_unknown_ops_widen_the_interval(tmp_path: Path) -> None:
    text = (EXAMPLES / "mlp.stablehlo.mlir").read_text()
    (tmp_path / "odd.mlir").write_text(text.replace("stablehlo.rsqrt", "stablehlo.frobnicate"))
    plain, odd = (read_program(path) for path in (EXAMPLES / "mlp.stablehlo.mlir", tmp_path / "odd.mlir"))
    assert "frobnicate" in odd.notes[0]
    spans = [GraphComparison(first=one, second=plain, chip=chip("h200-sxm")).span for one in (plain, odd)]
    assert spans[1][0] < spans[0][0] < 1 < spans[0][1] < spans[1][1]


def test_the_command_compares_and_refuses(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(EXAMPLES / "attention.hlo"), "--compare", str(EXAMPLES / "attention.tir.txt")]
    code, out, _ = run(capsys, monkeypatch, "graph", *files, "--on", "h200-sxm", "--json")
    assert (code, json.loads(out)["kind"]) == (0, "graph-comparison")
    assert "fuses more" in run(capsys, monkeypatch, "graph", *files, "--on", "h200-sxm")[1]
    assert run(capsys, monkeypatch, "graph", *files)[0] == 2
    with pytest.raises(InputError, match="no chip"):
        graph(files[0], compare=files[2])
