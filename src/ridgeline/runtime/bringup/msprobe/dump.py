"""Read the folder that msprobe wrote: API calls, forward and backward, each with its module and notes of its tensors.

    dump.json         task, level, framework; data: {"Functional.linear.0.forward": {input_args, input_kwargs, output}}
    construct.json    the module of each call (levels L0 and mix); empty at L1
    stack.json        the lines of code of groups of calls, which name the place where construct.json does not
    a tensor's file   .pt, a zip archive with a pickle, read with `weights_only` by a torch in which its known holes are
                      closed and only where nothing in it is compressed, so that it cannot grow; .npy: header and bytes

Input is hostile: sizes are capped, names are text of a stranger, files of tensors are looked for inside the folder, and
nothing in them is run.
"""

from __future__ import annotations

import ast
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.core.documents import JsonMapping, JsonObject
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
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    outputs: tuple[object, ...]
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


def _json(path: Path) -> JsonObject:
    try:
        table = json.loads(read_text(path, BIGGEST))
    except (ValueError, RecursionError) as error:
        raise _refuse_dump(path, f"a file that is no JSON ({type(error).__name__})", "dump again") from error
    if not isinstance(table, dict):
        raise _refuse_dump(path, f"a {type(table).__name__}", "dump again")
    return table


def _refuse_dump(path: Path, given: str, todo: str) -> InputError:
    return InputError(Problem(path=f"--msprobe {path}", given=given, expected="a dump of msprobe", todo=todo))


def _call(found: re.Match[str], value: JsonObject, tensors: Path, module: str) -> ApiCall:
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


def _value(one: object, tensors: Path) -> object:
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


def _note(one: JsonObject, tensors: Path) -> TensorNote:
    shape = one.get("shape")
    sizes = tuple(int(n) for n in shape) if isinstance(shape, list) and _is_shape(shape) else (-1,)
    name = one.get("data_name")
    file = path_within(tensors, name) if isinstance(name, str) and len(name) < 400 and "\0" not in name else None
    return TensorNote(
        dtype=str(one.get("dtype", ""))[:40].removeprefix("torch.").removeprefix("mindspore.").lower(), shape=sizes,
        figures={key: number for key in FIGURES if (number := _figure(one.get(key))) is not None},
        file=file if file is not None and file.is_file() else None, wants_grad=one.get("requires_grad") is True,
    )  # fmt: skip


def _is_shape(shape: list[object]) -> bool:
    return len(shape) <= 16 and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**40 for n in shape)


def _figure(value: object) -> float | None:
    """A number; NaN and infinities are written as words."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value) if isinstance(value, str) and len(value) < 40 else None
    except ValueError:
        return None


def _module(name: str, parents: JsonMapping, lines: Mapping[str, str]) -> str:
    """The path of the nearest module above a call, or the line of code that made it."""
    above = parents.get(name)
    if isinstance(above, list):  # newer versions add the pipeline's step
        above = above[0] if above else None
    match = MODULE.fullmatch(above) if isinstance(above, str) and len(above) < 1000 else None
    if match is not None:
        return match["path"] or match["type"]
    return lines.get(name) or lines.get(name.replace(".backward", ".forward")) or ""


def _stacks(told: JsonMapping) -> dict[str, str]:
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


BIGGEST_TENSOR = 1 << 30  # bytes of a file
SAFE = (2, 10)  # the first torch whose weights_only has no hole that is known
NUMPY = {
    "f8": torch.float64, "f4": torch.float32, "f2": torch.float16, "i8": torch.int64, "i4": torch.int32,
    "i2": torch.int16, "i1": torch.int8, "u1": torch.uint8, "b1": torch.bool,
}  # fmt: skip


class UnreadableError(Exception):
    """A file whose values are not used, and why."""


def read_tensor(note: TensorNote) -> Tensor:
    """The values of a note; an `UnreadableError` where they are not what the note says."""
    path = note.file
    if path is None:
        raise UnreadableError("not dumped")
    if path.stat().st_size > BIGGEST_TENSOR:
        raise UnreadableError(f"{path.name} is larger than {BIGGEST_TENSOR} bytes")
    tensor = _npy(path) if path.suffix == ".npy" else _pt(path)
    if tuple(tensor.shape) != note.shape:
        raise UnreadableError(f"{path.name} has the shape {tuple(tensor.shape)}, dump.json says {note.shape}")
    form = getattr(torch, note.dtype, None)
    if isinstance(form, torch.dtype) and form != tensor.dtype and tensor.is_floating_point():
        tensor = tensor.to(form)  # bfloat16 is dumped as float32 by some
    return tensor


def _pt(path: Path) -> Tensor:
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < SAFE:
        raise UnreadableError(f"torch {torch.__version__} does not read .pt files safely; {SAFE[0]}.{SAFE[1]} does")
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
        if len(parts) > 64 or any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise UnreadableError(f"{path.name} is not as torch.save writes it")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnreadableError:
        raise
    except Exception as error:  # a damaged or hostile archive raises whatever it likes
        raise UnreadableError(f"{path.name}: {type(error).__name__}") from error
    if not isinstance(content, Tensor) or content.layout != torch.strided:
        raise UnreadableError(f"{path.name} holds a {type(content).__name__}")
    return content.detach()


def _npy(path: Path) -> Tensor:
    with path.open("rb") as file:
        head = file.read(10)
        if head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
            raise UnreadableError(f"{path.name} is no .npy file")
        wide = head[6] > 1
        length = int.from_bytes((head[8:10] + file.read(2)) if wide else head[8:10], "little")
        if length > 10_000:
            raise UnreadableError(f"{path.name} has a header of {length} bytes")
        try:
            header = ast.literal_eval(file.read(length).decode("latin-1"))
            shape = tuple(int(n) for n in header["shape"])
            dtype = NUMPY[str(header["descr"]).lstrip("<|=")]
        except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
            raise UnreadableError(f"{path.name} holds values that are not read") from error
        data = bytearray(file.read(BIGGEST_TENSOR))
    count = 1
    for size in shape:
        count *= max(size, 0)
    if count * dtype.itemsize != len(data):
        raise UnreadableError(f"{path.name} has {len(data)} bytes for the shape {shape}")
    if not count:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=dtype)
    return (
        flat.view(*reversed(shape)).permute(*reversed(range(len(shape))))
        if header.get("fortran_order")
        else flat.view(shape)
    )
