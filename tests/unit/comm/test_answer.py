"""`ridgeline.collective`, its JSON, its files and its command line; hostile files are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from typer.testing import CliRunner

import ridgeline
from ridgeline.cli.main import command_line
from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.formats.files import read_algorithm, read_collective, write_algorithm
from ridgeline.comm.verify import AlgorithmVerification
from ridgeline.core.encode import answer_json
from ridgeline.core.errors import InputError
from ridgeline.report.results import verb_schema


def verify_file(path: Path) -> tuple[Algorithm, AlgorithmVerification]:
    found = read_collective(path)
    assert found.algorithm is not None
    assert found.verification is not None
    return found.algorithm, found.verification


def test_the_answer_and_its_json() -> None:
    found = ridgeline.collective("allreduce", on="8xh100-sxm", size="1 GB")
    sheet = answer_json(found)
    validate(sheet, verb_schema("collective"))
    assert sheet["verified"]
    assert sheet["algorithm"] == "in-switch"
    assert found.busbw == pytest.approx(2 * 7 / 8 * 1e9 / found.seconds)
    assert found.seconds >= found.bound.seconds


def test_a_broken_torus_is_synthesized_near_its_bound() -> None:
    broken = ridgeline.collective("allgather", topology="torus:8x8", without=["link:3-4"], synthesize=True)
    assert broken.verification.ok
    assert broken.ratio_to_bound <= 1.03
    assert broken.synthesis_seconds is not None
    whole = ridgeline.collective("allgather", topology="torus:8x8", synthesize=True)
    assert whole.seconds < broken.seconds


@pytest.mark.parametrize(
    "options",
    [
        {"name": "allredcue", "topology": "ring:4"},
        {"name": "allreduce"},
        {"name": "allreduce", "topology": "ring:4", "on": "8xh100-sxm"},
        {"name": "allreduce", "topology": "ring:4", "size": "0 B"},
        {"name": "allreduce", "topology": "ring:4", "size": "4 furlongs"},
        {"name": "allreduce", "topology": "ring:4", "algorithm": "rnig"},
        {"name": "broadcast", "topology": "ring:4", "root": 4},
        {"name": "allreduce", "topology": "ring:4", "link": "0 B/s"},
        {"name": "allreduce", "topology": "mesh:4x1", "without": ["link:0-1"]},
        {"name": "allreduce", "on": "64xh100-smx"},
    ],
)
def test_wrong_questions(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ridgeline.collective(**options)


def test_a_root_in_the_middle_and_a_size_without_unit() -> None:
    found = ridgeline.collective("broadcast", topology="mesh:5x5", size="7", root=12, synthesize=True)
    assert found.size_bytes == 7
    assert 1 <= found.ratio_to_bound < 1.001
    assert found.seconds >= found.bound.seconds
    with pytest.raises(InputError, match="size: got 'seven'"):
        ridgeline.collective("broadcast", topology="mesh:5x5", size="seven")


def test_one_rank_needs_no_time() -> None:
    assert ridgeline.collective("allreduce", topology="ring:1").seconds == 0.0


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"])
def test_files_are_read_as_written(name: str, tmp_path: Path) -> None:
    found = ridgeline.collective(name, topology="mesh:2x3", root=4, size=1e6)
    path = tmp_path / "algorithm.json"
    write_algorithm(found.algorithm, path)
    read, verified = verify_file(path)
    assert verified.ok
    assert np.array_equal(read.steps.chunk, found.algorithm.steps.chunk)
    assert read.contract.end_places().tolist() == found.algorithm.contract.end_places().tolist()
    data = json.loads(path.read_text())
    for column in data["steps"].values():
        del column[0]
    path.write_text(json.dumps(data))
    read, verified = verify_file(path)
    assert not verified.ok
    validate(answer_json(read_collective(path)), verb_schema("collective"))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"}, {"collective": "dance"}, {"ranks": 0}, {"ranks": "4"}, {"chunks": 5}, {"nodes": 2},
        {"root": 9}, {"chunks": 2**30}, {"steps": []}, {"steps": {"round": [0]}}, {"ranks": True},
        {"steps": {"round": [0.5], "source": [0], "target": [1], "chunk": [0], "op": [0], "channel": [0]}},
        {"steps": {"round": [0, 1], "source": [0], "target": [1], "chunk": [0], "op": [0], "channel": [0]}},
        {"steps": {"round": [0], "source": [0], "target": [1], "chunk": [0], "op": [300], "channel": [0]}},
    ],
)  # fmt: skip
def test_hostile_files_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "algorithm.json"
    write_algorithm(ridgeline.collective("allgather", topology="ring:4").algorithm, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError):
        read_algorithm(path)
    for text in ("", "[1", "[" * 100_000, "\x00"):
        path.write_text(text)
        with pytest.raises(InputError):
            read_algorithm(path)


def test_the_command_line(tmp_path: Path) -> None:
    run, path = CliRunner(), tmp_path / "found.json"
    asked = ["collective", "allreduce", "--topology", "mesh:3x3", "--link", "50 GB/s", "--latency", "0.5us"]
    done = run.invoke(command_line(), [*asked, "--size", "1MB", "--synthesize", "--json", "-o", str(path)])
    assert done.exit_code == 0
    sheet = json.loads(done.stdout)
    expected = {"seconds", "busbw", "bound_seconds", "ratio_to_bound", "algorithm", "rounds", "steps", "verified"}
    assert expected <= set(sheet)
    assert sheet["synthesis_seconds"] > 0
    assert "rounds from left to right" in run.invoke(command_line(), asked).stdout
    told = run.invoke(command_line(), ["collective", "verify", str(path)])
    assert told.exit_code == 0
    assert "every output right" in told.stdout
    data = json.loads(path.read_text())
    for column in data["steps"].values():
        del column[0]
    path.write_text(json.dumps(data))
    assert run.invoke(command_line(), ["collective", "verify", str(path), "--json"]).exit_code == 2


def test_a_selector_by_size_and_a_picture(tmp_path: Path) -> None:
    asked = ["collective", "allreduce", "--topology", "ring:6", "--latency", "5us"]
    pictures = [tmp_path / "schedule.png", tmp_path / "schedule.svg"]
    for path in pictures:
        done = CliRunner().invoke(command_line(), [*asked, "--by-size", "--json", "--picture", str(path)])
        assert done.exit_code == 0
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert "<rect" in pictures[1].read_text()
    ranges = json.loads(done.stdout)["by_size"]
    assert len(ranges) > 1
    assert ranges[0]["max_bytes"] == ranges[1]["min_bytes"]
    for one in ranges:
        middle = (one["min_bytes"] * one["max_bytes"]) ** 0.5
        options: dict[str, Any] = {"topology": "ring:6", "latency": "5us", "size": middle}
        named = ridgeline.collective("allreduce", algorithm=one["algorithm"], **options)
        assert named.seconds <= 1.02 * ridgeline.collective("allreduce", **options).seconds
    assert CliRunner().invoke(command_line(), [*asked, "--picture", str(tmp_path / "schedule.gif")]).exit_code != 0


def test_exchanges_by_name(tmp_path: Path) -> None:
    """Send and receive, unequal all-to-all, MoE dispatch and combine, unequal groups: proven, above their bounds."""
    matrix = tmp_path / "sizes.csv"
    matrix.write_text("0,1,5\n2,0,1\n0,0,0\n")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("sendrecv", {"topology": "ring:8", "pairs": ["0-3", "4-5"]}),
        ("alltoallv", {"topology": "ring:3", "matrix": matrix}),
        ("alltoallv", {"topology": "switch:2", "matrix": [[0, 2], [1, 0]]}),
        ("dispatch", {"on": "16xh100-sxm", "experts": 32, "top_k": 4}),
        ("combine", {"on": "16xh100-sxm", "experts": 32, "top_k": 4}),
        ("allreduce", {"topology": "switch:5", "groups": "2+3", "algorithm": "unequal-groups"}),
        ("allreduce", {"topology": "domains:2x4", "without": ["node:7"], "algorithm": "ahc"}),
        ("All-Reduce", {"topology": "sharp:8", "algorithm": "nvls"}),
        ("allgather", {"topology": "switch:6", "algorithm": "bruck"}),
    ]
    for name, options in asked:
        found = ridgeline.collective(name, size="1KB", **options)
        assert found.verification.ok, name
        assert found.seconds >= found.bound.seconds * (1 - 1e-9) > 0, name
    matrix.write_text("0,1\n2,x\n")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("alltoallv", {"topology": "ring:2", "matrix": matrix}, "from rank 1 to rank 1"),
        ("alltoallv", {"topology": "ring:3", "matrix": [[1, 2]]}, "3 rows"),
        ("sendrecv", {"topology": "ring:4", "pairs": ["0-9"]}, "different ranks"),
        ("dispatch", {"topology": "ring:4", "experts": 6}, "multiple of 4"),
        ("allreduce", {"topology": "ring:4", "groups": "2+3"}, "make 4 ranks"),
        ("allreduce", {"topology": "switch:6", "algorithm": "swing"}, "power of two"),
    ]
    for name, options, told in wrong:
        with pytest.raises(InputError, match=told):
            ridgeline.collective(name, **options)


def test_the_whole_library_and_pages(tmp_path: Path) -> None:
    run, page, file = CliRunner(), tmp_path / "page.html", tmp_path / "found.json"
    listed = run.invoke(command_line(), ["collective", "list", "--topology", "torus:4x4", "--size", "1MB", "--json"])
    sheet = json.loads(listed.stdout)
    validate(sheet, verb_schema("collective"))
    assert all(one["verified"] and one["over_bound"] >= 1 - 1e-9 for one in sheet["algorithms"])
    names = {one["algorithm"] for one in sheet["algorithms"]}
    assert names >= {"ring", "double-tree", "halving-doubling", "bruck", "pairwise", "nhr", "nb", "bucket", "swing"}
    asked = ["collective", "allreduce", "--topology", "ring:6", "--latency", "5us", "--synthesize", "-o", str(file)]
    told = run.invoke(command_line(), [*asked, "--by-size", "--picture", str(page)])
    assert "crossing" in told.stdout
    text = page.read_text()
    assert "<h2>By size</h2>" in text
    assert text.count("<rect") > 10
    assert "Content-Security-Policy" in text
    assert run.invoke(command_line(), ["collective", "verify", str(file), "--picture", str(page)]).exit_code == 0
    assert "switch:6" in page.read_text()


def test_tokens_leave_a_domain_once_and_are_handed_on_inside_the_next() -> None:
    """As DeepEP's normal kernels: dispatch and combine over two nodes of eight, eight experts a token."""
    for name in ("dispatch", "combine"):
        known = {
            way: ridgeline.collective(name, on="16xh100-sxm", experts=64, top_k=8, algorithm=way)
            for way in ("all-pairs", "forwarded")
        }
        assert all(one.verification.ok for one in known.values())
        assert known["forwarded"].seconds < 0.5 * known["all-pairs"].seconds
        assert known["forwarded"].ratio_to_bound >= 1
        assert ridgeline.collective(name, on="16xh100-sxm", experts=64, top_k=8).algorithm.name == "forwarded"
    with pytest.raises(InputError, match="forwarded"):
        ridgeline.collective("dispatch", topology="mesh:2x2", algorithm="forwarded")


def test_what_would_be_left_out_is_refused() -> None:
    with pytest.raises(InputError, match="one of the two"):
        ridgeline.collective("allreduce", topology="mesh:2x2", algorithm="ring", synthesize=True)
    with pytest.raises(InputError, match="--synthesize with it"):
        ridgeline.collective("allreduce", topology="mesh:2x2", chunks=3)
