"""`ridgeline.collective`, its sheet, its files and its command line; hostile files are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from typer.testing import CliRunner

import ridgeline
from ridgeline.cli.main import app
from ridgeline.comm.algorithm_file import read_algorithm, write_algorithm
from ridgeline.comm.answer import verify_file
from ridgeline.comm.formats.files import read_collective
from ridgeline.core.errors import InputError
from ridgeline.report.collective import collective_sheet, verification_sheet
from ridgeline.report.sheets.schema import sheet_schema


def test_the_answer_and_its_sheet() -> None:
    found = ridgeline.collective("allreduce", on="8xh100-sxm", size="1 GB")
    sheet = collective_sheet(found)
    validate(sheet, sheet_schema("collective"))
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
    validate(verification_sheet(read_collective(path)), sheet_schema("collective"))


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
    done = run.invoke(app, [*asked, "--size", "1MB", "--synthesize", "--json", "-o", str(path)])
    assert done.exit_code == 0
    sheet = json.loads(done.stdout)
    expected = {"seconds", "busbw", "bound_seconds", "ratio_to_bound", "algorithm", "rounds", "steps", "verified"}
    assert expected <= set(sheet)
    assert sheet["synthesis_seconds"] > 0
    assert "rounds from left to right" in run.invoke(app, asked).stdout
    told = run.invoke(app, ["collective", "verify", str(path)])
    assert told.exit_code == 0
    assert "every output right" in told.stdout
    data = json.loads(path.read_text())
    for column in data["steps"].values():
        del column[0]
    path.write_text(json.dumps(data))
    assert run.invoke(app, ["collective", "verify", str(path), "--json"]).exit_code == 2


def test_a_selector_by_size_and_a_picture(tmp_path: Path) -> None:
    asked = ["collective", "allreduce", "--topology", "ring:6", "--latency", "5us"]
    pictures = [tmp_path / "schedule.png", tmp_path / "schedule.svg"]
    for path in pictures:
        done = CliRunner().invoke(app, [*asked, "--by-size", "--json", "--picture", str(path)])
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
    assert CliRunner().invoke(app, [*asked, "--picture", str(tmp_path / "schedule.gif")]).exit_code != 0
