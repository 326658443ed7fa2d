"""Every target has the same shape, and naming the targets imports none of them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ridgeline.targets
from ridgeline.core.errors import InputError
from ridgeline.targets.registry import IDS, READABLE, SERVE, TARGETS, TRAIN, detect
from ridgeline.targets.target import Target

FOLDER = Path(ridgeline.targets.__file__).parent


@pytest.mark.parametrize("id", IDS)
def test_a_target_has_the_shape_of_the_others(id: str) -> None:
    name = f"ridgeline.targets.dialects.{id.replace('-', '_')}"
    target, module = TARGETS[id], import_module(name)
    assert isinstance(target, Target)
    assert target.id == id
    parts = hasattr(module, "__path__")
    reader, writer = (import_module(f"{name}.{part}") if parts else module for part in ("read", "write"))
    assert (target.write, target.read, target.recognises) == (writer.write, reader.read, reader.recognises)
    assert all((target.title, target.version, target.source))


def test_every_dialect_is_registered() -> None:
    there = {path.stem for path in (FOLDER / "dialects").iterdir() if not path.stem.startswith("__")}
    assert there == {id.replace("-", "_") for id in READABLE}


def test_naming_the_targets_imports_none() -> None:
    code = (
        "import sys\n"
        "from ridgeline.targets.registry import IDS, TARGETS\n"
        "assert list(TARGETS) == list(IDS) and 'megatron' in TARGETS and len(TARGETS) == len(IDS)\n"
        "own = {name for name in sys.modules if name.startswith('ridgeline')}\n"
        "door = {'ridgeline.core', 'ridgeline.core.door', 'ridgeline.targets', 'ridgeline.targets.registry'}\n"
        "assert own <= {'ridgeline', 'ridgeline.version', *door}, own\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("id", [*SERVE, *TRAIN])
def test_a_target_is_imported_without_the_predictor(id: str) -> None:
    """To write is no prediction: only what a fallback costs is predicted, and `export`, which reads its files again."""
    train = {"seq": 8192, "global_batch": 64}
    serve = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1}, "isl": 64, "osl": 8}
    plan = {"tp": 2} | ({"engine": "vllm"} if id in SERVE else {})
    table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": serve if id in SERVE else train, "plan": plan}
    code = (
        "import sys, ridgeline\n"
        f"made = ridgeline.scenario({table!r})\n"
        "from ridgeline.targets.registry import TARGETS\n"
        f"TARGETS[{id!r}].write(made)\n"
        "floors = ('ridgeline.sim', 'ridgeline.cost', 'ridgeline.lowering', 'ridgeline.trace', 'numpy')\n"
        "heavy = [name for name in sys.modules if name.startswith(floors)]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_target_is_told_the_known_ones() -> None:
    with pytest.raises(InputError, match="megatron"):
        TARGETS["megatorn"]
    with pytest.raises(InputError, match="which no target recognises"):
        detect({"a.txt": ""})


def test_a_verb_takes_a_target_by_id() -> None:
    assert "to" in inspect.signature(ridgeline.export).parameters
