"""Turn a PageState into a design study: machines around the one that is chosen, under budgets, for its workload."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.hardware.load import system
from ridgeline.web.scenarios import Shelf, file_of, machine_name, scenario_table
from ridgeline.web.state import PageState

LESS, MORE = 0.6, 4.0  # of what the chip has: the ends of the space
POINTS = {"compute": 9, "memory.bandwidth": 9, "memory.capacity": 5, "scaleup.bandwidth": 5}
"""Values of each number that are tried, evenly in logarithms."""


def is_study_file(path: Path) -> bool:
    """Whether a file is a design study."""
    if path.suffix.lower() not in SUFFIXES:
        return False
    try:
        return bool({"space", "architectures"} & read_table(path).data.keys())
    except InputError:
        return False


def study_table(state: PageState, shelf: Shelf) -> JsonObject:
    """The study of a state: its scenario on machines from 0.6 to 4 times what the chip has, under its budgets."""
    chip = system(machine_name(state)).chip
    peak = chip.peak.get("bf16") or chip.peak.get("fp16")
    today = {
        "compute": (peak, "FLOP/s"), "memory.bandwidth": (chip.hbm.bandwidth, "B/s"),
        "memory.capacity": (chip.hbm.capacity, "B"), "scaleup.bandwidth": (chip.scaleup.bandwidth, "B/s"),
    }  # fmt: skip
    space = {
        name: {
            "from": f"{number.value * LESS:g} {unit}",
            "to": f"{number.value * MORE:g} {unit}",
            "points": POINTS[name],
        }
        for name, (number, unit) in today.items()
        if number is not None
    }
    return {
        "title": f"What should the chip after {chip.id} be?",
        "objective": state["aim"],
        "node": "n3",
        "workload": [{"name": state["kind"], "scenario": scenario_table(state, shelf)}],
        "space": space,
        "budget": {"area": state.amount("area"), "power": f"{state.amount('power'):g} W"},
    }


@contextmanager
def study_file(state: PageState, shelf: Shelf) -> Iterator[Path]:
    """The study that was dropped, or that of the state as a file."""
    path = file_of(state, shelf)
    if path is not None and is_study_file(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        target = Path(folder) / "study.json"
        target.write_text(json.dumps(study_table(state, shelf)), encoding="utf-8")
        yield target
