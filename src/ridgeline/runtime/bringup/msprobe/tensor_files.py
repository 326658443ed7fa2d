"""Read a tensor's file of a stranger: .pt of torch.save and .npy, without running anything in it.

A .pt file is a zip archive with a pickle. It is read with `weights_only`, by a torch in which its known holes are
closed, and only where nothing in it is compressed, so that it cannot grow. A .npy file is a header and bytes.
"""

from __future__ import annotations

import ast
import re
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.runtime.bringup.msprobe.dump import TensorNote

BIGGEST = 1 << 30  # bytes of a file
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
    if path.stat().st_size > BIGGEST:
        raise UnreadableError(f"{path.name} is larger than {BIGGEST} bytes")
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
        data = bytearray(file.read(BIGGEST))
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
