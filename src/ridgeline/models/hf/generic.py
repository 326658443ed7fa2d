"""Turn a config without a reader into a ModelSpec: another process builds the model and records one forward of it.

    captured(config)            the config of a type that an installed transformers knows
    captured_module(reference)  a function of the user's that makes a torch module

This floor has no torch: the process `python -m ridgeline.runtime.capture` has it, and answers with the model's table of
dimensions. Only code of transformers runs for a config; the user's own for a reference, which no file may name.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.models.dimensions import read_dimensions
from ridgeline.models.spec import ModelSpec

LONGEST_S = 600
INSTALL = 'pip install "ridgeline[transformers]"'
NEEDED = ("torch", "transformers")
TYPES = "models/auto/auto_mappings.py", "models/auto/configuration_auto.py"  # where transformers names its types


def capture_config(data: JsonMapping, readers: Collection[str], id: str = "") -> ModelSpec:
    """The model of a config without a reader, or an `InputError` with the nearest readers and the way to capture it."""
    kind = str(data.get("model_type"))[:60]
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        todo = f"other types are captured from the model that transformers builds: {INSTALL}"
        raise UnknownId("model_type", kind, readers, todo=todo)
    if not knows(kind):
        todo = "the installed transformers does not know it either; `ridgeline capture file.py:function` takes a module"
        raise UnknownId("model_type", kind, readers, todo=todo)
    return _run_capture(json.dumps({"config": dict(data), "id": id or kind}, sort_keys=True))


def captured_module(reference: str) -> ModelSpec:
    """The model that a function `module:function` or `file.py:function` returns with its example inputs."""
    if importlib.util.find_spec("torch") is None:
        todo = "`pip install ridgeline[torch]`, in the build of your accelerator"
        raise InputError(Problem(path="capture", given="no module torch", expected="torch", todo=todo))
    return _run_capture(json.dumps({"reference": reference}))


def knows(kind: str) -> bool:
    """Whether the installed transformers names a type; reads its tables as text, which takes no seconds."""
    package = importlib.util.find_spec("transformers")
    folder = Path((package.submodule_search_locations or [""])[0]) if package else Path()
    texts = [(folder / name).read_text(encoding="utf-8") for name in TYPES if (folder / name).is_file()]
    return bool(kind) and any(f'"{kind}"' in text for text in texts)


@lru_cache(maxsize=16)
def _run_capture(request: str) -> ModelSpec:
    command = [sys.executable, "-m", "ridgeline.runtime.capture"]
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        given_text, expectation = (
            f"a forward that takes over {LONGEST_S} s",
            "one that ends; fewer layers capture faster",
        )
        raise InputError(Problem(path="model", given=given_text, expected=expectation)) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last_line = (done.stderr.strip().splitlines() or ["nothing"])[-1][:200]
        expectation = "a capture that ends"
        raise InputError(
            Problem(path="model", given=f"exit {done.returncode}: {last_line}", expected=expectation)
        ) from None
    if "table" not in answer:
        raise InputError([Problem(**problem) for problem in answer["problems"]])
    table = answer["table"]
    return read_dimensions(str(table.get("name") or "captured"), table)
