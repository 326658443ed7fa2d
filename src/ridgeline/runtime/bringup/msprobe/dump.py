"""Read the folder that msprobe wrote: API calls, forward and backward, each with its module and notes of its tensors.

    dump.json         task, level, framework; data: {"Functional.linear.0.forward": {input_args, input_kwargs, output}}
    construct.json    the module of each call (levels L0 and mix); empty at L1
    stack.json        the lines of code of groups of calls, which name the place where construct.json does not

Input is hostile: sizes are capped, names are text of a stranger, files of tensors are looked for inside the folder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import path_within, read_text

BIGGEST = 512 * 1024 * 1024  # bytes of dump.json
MOST_CALLS = 1_000_000
MOST_DUMPS = 64  # ranks and steps of one folder
DEEPEST = 3  # folders below the named one: step, rank
NAME = re.compile(r"(?P<api>[A-Z]\w*\.[\w.]{1,200}?)\.(?P<index>\d{1,9})\.(?P<phase>forward|backward)")
MODULE = re.compile(r"(?:Module|Cell)\.(?P<path>[\w.]*?)\.?(?P<type>\w+)\.(?:forward|backward|parameters_grad)\.\d+")
FIGURES = ("Max", "Min", "Mean", "Norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNote:
    """What a dump says of a tensor.

    figures       Max, Min, Mean, Norm, as far as they are numbers; NaN and infinities are kept
    file          where its values lie; None where they were not dumped
    wants_grad    requires_grad, as it was told
    """

    dtype: str
    shape: tuple[int, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    file: Path | None = None
    wants_grad: bool = False

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of an API, one way.

    api       Functional.linear, Tensor.__add__, Torch.matmul, NPU.npu_rms_norm
    phase     forward, or backward: then `args` are the gradients that came and `outputs` those that went on
    module    path in the model, or the line of code
    """

    api: str
    index: int
    phase: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One rank's calls of one step; `label` is its folder below the named one."""

    label: str
    task: str
    level: str
    framework: str
    calls: tuple[ApiCall, ...]


def read_dumps(folder: Path) -> tuple[Dump, ...]:
    """Every dump below a folder: of a rank, of a step, or of a whole run."""
    if not folder.is_dir():
        raise _refuse_dump(folder, "no folder", "name the dump_path of msprobe, or a step or rank below it")
    files = sorted(path for path in _below(folder, DEEPEST) if path.is_file())
    if not files:
        raise _refuse_dump(
            folder, "a folder without dump.json", "name the dump_path of msprobe, or a step or rank below it"
        )
    if len(files) > MOST_DUMPS:
        raise _refuse_dump(folder, f"{len(files)} dumps", f"name a step or rank: {MOST_DUMPS} are read at most")
    return tuple(read_dump(path.parent, str(path.parent.relative_to(folder))) for path in files)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    yield folder / "dump.json"
    if depth:
        for part in sorted(folder.iterdir()):
            if part.is_dir() and not part.is_symlink() and part.name != "dump_tensor_data":
                yield from _below(part, depth - 1)


def read_dump(folder: Path, label: str = "") -> Dump:
    """The dump of one rank and step."""
    table = _json(folder / "dump.json")
    data = table.get("data")
    if not isinstance(data, dict) or len(data) > MOST_CALLS:
        raise _refuse_dump(folder / "dump.json", "no table `data` of calls", "dump at level L1 or mix")
    parents = _json(folder / "construct.json") if (folder / "construct.json").is_file() else {}
    lines = _stacks(_json(folder / "stack.json")) if (folder / "stack.json").is_file() else {}
    tensors = folder / "dump_tensor_data"
    calls = []
    for name, value in data.items():
        match = NAME.fullmatch(name)
        if match is None or not isinstance(value, dict) or match["api"].startswith(("Module.", "Cell.")):
            continue
        calls.append(_call(match, value, tensors, _module(name, parents, lines)))
    return Dump(
        label="" if label == "." else label,
        task=str(table.get("task", ""))[:40],
        level=str(table.get("level", ""))[:10],
        framework=str(table.get("framework", ""))[:20],
        calls=tuple(calls),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(read_text(path, BIGGEST))
    except (ValueError, RecursionError) as error:
        raise _refuse_dump(path, f"a file that is no JSON ({type(error).__name__})", "dump again") from error
    if not isinstance(table, dict):
        raise _refuse_dump(path, f"a {type(table).__name__}", "dump again")
    return table


def _refuse_dump(path: Path, given: str, todo: str) -> InputError:
    return InputError(Problem(path=f"--msprobe {path}", given=given, expected="a dump of msprobe", todo=todo))


def _call(found: re.Match[str], value: dict[str, Any], tensors: Path, module: str) -> ApiCall:
    inputs = value.get("input_args", value.get("input", value.get("grad_input", ())))
    keywords = value.get("input_kwargs")
    outputs = value.get("output", value.get("grad_output", ()))
    return ApiCall(
        api=found["api"],
        index=int(found["index"]),
        phase=found["phase"],
        module=module,
        args=tuple(_value(input, tensors) for input in inputs) if isinstance(inputs, list) else (),
        kwargs={str(key): _value(entry, tensors) for key, entry in keywords.items()}
        if isinstance(keywords, dict)
        else {},
        outputs=tuple(_value(output, tensors) for output in outputs) if isinstance(outputs, list) else (),
    )


def _value(one: Any, tensors: Path) -> Any:
    """A note of a tensor, or the plain value that was told; what is neither is None."""
    if isinstance(one, list):
        return [_value(part, tensors) for part in one[:256]]
    if not isinstance(one, dict):
        return one if isinstance(one, bool | int | float | str) else None
    kind = str(one.get("type", ""))
    if kind.endswith(("Tensor", "Parameter")):
        return _note(one, tensors)
    value = one.get("value")
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return slice(*value)
    if kind in ("torch.dtype", "dtype") and isinstance(value, str):
        return value if value.startswith("torch.") else f"torch.{value}"
    return value if isinstance(value, bool | int | float | str) else None


def _note(one: dict[str, Any], tensors: Path) -> TensorNote:
    shape = one.get("shape")
    sizes = tuple(int(n) for n in shape) if isinstance(shape, list) and _is_shape(shape) else (-1,)
    name = one.get("data_name")
    file = path_within(tensors, name) if isinstance(name, str) and len(name) < 400 and "\0" not in name else None
    return TensorNote(
        dtype=str(one.get("dtype", ""))[:40].removeprefix("torch.").removeprefix("mindspore.").lower(), shape=sizes,
        figures={key: number for key in FIGURES if (number := _figure(one.get(key))) is not None},
        file=file if file is not None and file.is_file() else None, wants_grad=one.get("requires_grad") is True,
    )  # fmt: skip


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= 16 and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**40 for n in shape)


def _figure(value: Any) -> float | None:
    """A number; NaN and infinities are written as words."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if isinstance(value, str) and len(value) < 40 else None
    except ValueError:
        return None


def _module(name: str, parents: Mapping[str, Any], lines: Mapping[str, str]) -> str:
    """The path of the nearest module above a call, or the line of code that made it."""
    above = parents.get(name)
    if isinstance(above, list):  # newer versions add the pipeline's step
        above = above[0] if above else None
    match = MODULE.fullmatch(above) if isinstance(above, str) and len(above) < 1000 else None
    if match is not None:
        return match["path"] or match["type"]
    return lines.get(name) or lines.get(name.replace(".backward", ".forward")) or ""


def _stacks(told: Mapping[str, Any]) -> dict[str, str]:
    """The first line outside torch and msprobe, for each call."""
    lines: dict[str, str] = {}
    for group in told.values():
        if not (isinstance(group, list) and len(group) == 2 and all(isinstance(part, list) for part in group)):
            continue
        outside = (line for line in group[1] if isinstance(line, str) and not re.search(r"/(torch|msprobe)/", line))
        line = _line(next(outside, ""))
        lines |= {name: line for name in group[0] if isinstance(name, str)}
    return lines


def _line(text: str) -> str:
    """`model.py:23 in forward` of a line of a stack."""
    match = re.match(r"File (?P<file>[^,]{1,400}), line (?P<line>\d+), in (?P<name>\w+)", text)
    return f"{Path(match['file']).name}:{match['line']} in {match['name']}" if match else ""
