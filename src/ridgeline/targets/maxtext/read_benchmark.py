"""Turn a script of MaxText's benchmark runner, which says a name and a machine, into the command that the name means.

What the names mean is recorded from MaxText's checkout in `benchmarks.toml`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, not_among
from ridgeline.core.files import read_table
from ridgeline.targets.run_files import RunFiles, around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files

FILE = Path(__file__).parent / "benchmarks.toml"
SCRIPTS = (".sh", ".sbatch", ".slurm")
MARK = "# a benchmark of MaxText: "


@cache
def benchmarks() -> Mapping[str, Mapping[str, Any]]:
    """The options of every benchmark by its name."""
    return read_table(FILE).data


def benchmark_of(files: Files) -> dict[str, str] | None:
    """The runner's options in the first command that starts it."""
    for name, text in files.items():
        if name.endswith(SCRIPTS) and "benchmark_runner" in text:
            for command in read_script(text, around(files)).commands:
                if any("benchmark_runner" in word for word in command) and "model_name" in _options(command):
                    return _options(command)
    return None


def _options(command: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for at, word in enumerate(command):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value if equals else "".join(command[at + 1 : at + 2])
    return found


def spelled_out(files: Files) -> Files:
    """The files, with a script of the runner replaced by the training command and the machine that it asks for."""
    said = benchmark_of(files)
    if said is None or said.get("model_name") not in benchmarks():
        return files
    words = [f"{key}={shlex.quote(_word(value))}" for key, value in benchmarks()[said["model_name"]].items()]
    machine = [f"--device-type={said.get('device_type', '')}", f"--num-slices={said.get('num_slices', '1')}"]
    text = f"{MARK}{said['model_name']}\npython3 -m MaxText.train base.yml {' '.join(words)}\n"
    kept = {name: text for name, text in files.items() if "benchmark_runner" not in text}
    script = {f"{said['model_name']}.sh": f"{text}xpk workload create {shlex.join(machine)}\n"}
    return RunFiles({**kept, **script}, around(files))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def benchmark_note(files: Files) -> tuple[str, ...]:
    """What is assumed of a benchmark: that the installed MaxText means by its name what the recorded one does."""
    for text in files.values():
        found = re.match(rf"{MARK}(\w+)", text)
        if found:
            return (
                f"benchmark {found.group(1)}: batch, sequence, mesh and recompute as MaxText of August 2026 has them",
            )
    return ()


def refuse_strange(files: Files) -> None:
    """An `InputError` for a benchmark whose name is not recorded."""
    said = benchmark_of(files)
    if said is not None:
        raise InputError(not_among("--model_name", said.get("model_name", "nothing")[:60], benchmarks()))
