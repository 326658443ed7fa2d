"""Turn what starts MaxText on TPUs (xpk, a JobSet of Kubernetes) into the command it runs and the chips it asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.core.files import Table
from ridgeline.targets.option_reader import tables
from ridgeline.targets.run_files import RunFiles, around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files

DEEPEST = 20
MOST_SLICES = 10_000
# devices that the name of a slice counts for each chip: v5p-128 has 64 chips
COUNTED = {"v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1, "v5lite": 1}
HALVES = ("tpu7x", "v7x")  # generations whose chips JAX counts as two devices


def started(files: Files) -> Files:
    """The files, with the command of a JobSet as a script of its own."""
    if isinstance(files, RunFiles) and any(name.endswith(".jobset.sh") for name in files):
        return files
    texts = dict(files)
    for name, text in files.items():
        if name.endswith((".yaml", ".yml")) and re.search(r"^kind:\s*JobSet", text, re.MULTILINE):
            found = next((line for line in _texts(_table(name, text), 0) if "base.yml" in line), None)
            if found is not None:
                texts = {key: value for key, value in texts.items() if key != name}
                texts[f"{name}.jobset.sh"] = _inner(found) + _asked(text)
    return RunFiles(texts, around(files))


def _table(name: str, text: str) -> Mapping[str, Any]:
    try:
        return next(iter(tables({name: text}))).data
    except (InputError, StopIteration):
        return {}


def _inner(text: str) -> str:
    """The one line of a container's command that starts the training, without its parentheses."""
    line = next((line for line in text.splitlines() if "base.yml" in line), "").strip()
    return line.removeprefix("(").rstrip("; &").removesuffix(")") + "\n"


def _asked(text: str) -> str:
    """The chips that a manifest asks for, in the words of xpk."""
    kind = re.search(r"gke-tpu-accelerator:\s*([\w-]{1,40})", text)
    shape = re.search(r"gke-tpu-(?:slice-)?topology:\s*([\dx]{1,20})", text)
    slices = re.search(r"^\s{0,8}replicas:\s*(\d{1,4})", text, re.MULTILINE)
    if kind is None or shape is None:
        return ""
    count = slices.group(1) if slices else "1"
    return f"xpk workload create --device-type={kind.group(1)}-{shape.group(1)} --num-slices={count}\n"


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Every text below a value."""
    if isinstance(value, str):
        yield value
    elif depth < DEEPEST:
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        for part in inner:
            yield from _texts(part, depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What xpk is asked for: chips of all slices, slices, and whether JAX counts two devices for each chip."""

    chips: int | None = None
    slices: int = 1
    halves: bool = False


def machine_of(files: Files) -> Machine:
    """The machine of the first command that names one."""
    for name, text in files.items():
        if not name.endswith((".sh", ".sbatch")):
            continue
        for command in read_script(text, around(files)).commands:
            words = dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
            device = words.get("device-type", words.get("tpu-type", words.get("device_type", "")))
            chips = chips_of(device)
            slices = words.get("num-slices", words.get("num_slices", "1"))
            if chips is not None:
                count = int(slices) if slices.isdigit() and 0 < int(slices) < MOST_SLICES else 1
                return Machine(chips=chips * count, slices=count, halves=device.startswith(HALVES))
    return Machine()


def chips_of(device: str) -> int | None:
    """Chips of a slice by its name.

    >>> chips_of("tpu7x-4x4x8"), chips_of("v5p-128"), chips_of("v6e-256"), chips_of("h100")
    (128, 64, 256, None)
    """
    kind, _, size = device.rpartition("-")
    if re.fullmatch(r"\d{1,3}(x\d{1,3}){1,2}", size):
        return math.prod(int(part) for part in size.split("x"))
    each = COUNTED.get(kind.removeprefix("tpu-"))
    return int(size) // each if each is not None and size.isdigit() and int(size) >= each else None


def filled_axes(table: Table, devices: int) -> Table:
    """The table with the one inner axis of -1 filled in from the number of devices.

    That of fsdp stays open where nothing is copied: it is all that the others leave then.
    """
    names = {axis: f"ici_{axis}_parallelism" for axis in INNER}
    given = {axis: table.data.get(name, -1 if axis == "fsdp" else 1) for axis, name in names.items()}
    open_ = [axis for axis, degree in given.items() if degree == -1]
    others = math.prod(degree for degree in given.values() if type(degree) is int and degree > 0)
    slices = [table.data.get(f"dcn_{axis}_parallelism", 1) for axis in INNER]
    outer = math.prod(degree for degree in slices if type(degree) is int and degree > 0)
    if len(open_) != 1 or open_[0] == "data" or not devices or devices % (others * outer):
        return table
    if open_[0] == "fsdp" and not copies_data(table.data):
        return table
    return replace(table, data={**table.data, names[open_[0]]: devices // (others * outer)})


def copies_data(options: Mapping[str, Any]) -> bool:
    """Whether a stated number of copies of the weights is asked for, each split over its own devices."""
    stated = [options.get(f"{place}_data_parallelism", 1) for place in ("dcn", "ici")]
    return any(type(degree) is int and degree > 1 for degree in stated)


def filled_slices(table: Table, devices: int, slices: int) -> Table:
    """The table with every axis stated, for a run on several slices: data goes over them unless another axis does."""
    if slices < 2 or devices % slices:
        return table
    said = dict(table.data)
    for place, size, usual in (("dcn", slices, "data"), ("ici", devices // slices, "fsdp")):
        names = {axis: f"{place}_{axis}_parallelism" for axis in INNER}
        given = {axis: said.get(name, -1 if axis == usual else 1) for axis, name in names.items()}
        open_ = [axis for axis, degree in given.items() if degree == -1]
        others = math.prod(degree for degree in given.values() if type(degree) is int and degree > 0)
        if len(open_) == 1 and others and size % others == 0:
            said[names[open_[0]]] = size // others
    return replace(table, data=said)


def spare_axis(options: Mapping[str, Any]) -> str:
    """The axis that gives up the second device of a chip: the one left to fill, or the widest even one."""
    degrees = {axis: options.get(f"ici_{axis}_parallelism", -1 if axis == "fsdp" else 1) for axis in AXES}
    for axis, degree in degrees.items():
        if degree == -1:
            return axis
    even = [axis for axis, degree in degrees.items() if type(degree) is int and degree > 1 and degree % 2 == 0]
    return max(even, key=lambda axis: degrees[axis]) if even else ""


INNER = (
    "data",
    "fsdp",
    "fsdp_transpose",
    "context_usp_ulysses",
    "tensor",
    "tensor_sequence",
    "context",
    "pipeline",
    "expert",
)
AXES = ("fsdp", "data", "tensor", "context", "expert")
