"""A minimal reproduction of a finding: a script beside the op's inputs that fails on the device, not on the host.

    save(folder, recipe, args, kwargs)     repro.py, inputs.safetensors, recipe.json
    rerun(folder)                          what the script calls: 1 where the op is wrong, raises, dies or hangs
                     --device NAME         another device      --reference    the contract's own result, rounded once

Tensors are kept with the strides and offsets they had. The recipe names the file and the fault where the fake device
was given one, so that the script loads it again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ridgeline.core.errors import InputError
from ridgeline.core.files import write_text
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.arithmetic import Draw
from ridgeline.runtime.bringup.capture import Modules, Watch
from ridgeline.runtime.bringup.contracts import contract_of, outputs_of
from ridgeline.runtime.bringup.devices import open_device
from ridgeline.runtime.bringup.faults import Fault, chosen, read_faults
from ridgeline.runtime.bringup.judge import judge, widen_value
from ridgeline.runtime.bringup.tensors import on_device, on_host

MOST_BYTES = 100_000_000  # that all reproductions of a run may take
ANSWERED = 60  # an op that ends its process with 0 is not right
TIMES = 8  # a call is repeated: a race does not lose every time
INPUTS, RECIPE, SCRIPT = "inputs.safetensors", "recipe.json", "repro.py"
FORMATS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in FORMATS.items()}

TEMPLATE = '''"""{op} on {device}: {statistic} {measured:.3g}, limit {limit:.3g}. {where}

python repro.py                  on {device}: ends with 1
python repro.py --device cpu     on the host
python repro.py --reference      what the numerics contract says, rounded once: ends with 0
"""

import sys
from pathlib import Path

from ridgeline.runtime.bringup.repro import rerun

sys.exit(rerun(Path(__file__).resolve().parent))
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a reproduction calls and where it was seen."""

    op: str
    device: str
    module: str
    phase: str
    statistic: str
    measured: float
    limit: float
    faults: str = ""
    fault: str = ""
    limit_s: float = 60.0


def save(folder: Path, recipe: Recipe, args: tuple[Any, ...], kwargs: dict[str, Any], room: int = MOST_BYTES) -> int:
    """Write a reproduction; the bytes it took, 0 where there is not so much room."""
    tensors: list[Tensor] = []
    call_table = {
        "args": [_describe_argument(x, tensors) for x in args],
        "kwargs": {k: _describe_argument(v, tensors) for k, v in kwargs.items()},
    }
    needed_bytes: int = sum(x.numel() * x.element_size() for x in tensors)
    if needed_bytes + 8192 > room or any(x.dtype not in NAMES for x in tensors):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / INPUTS, {f"t{index}": x for index, x in enumerate(tensors)})
    write_text(folder / RECIPE, json.dumps({**asdict(recipe), **call_table}, indent=1) + "\n")
    where = f"First seen in {recipe.module or 'the model'}, {recipe.phase}."
    text = TEMPLATE.format(
        op=recipe.op,
        device=recipe.device,
        statistic=recipe.statistic,
        measured=recipe.measured,
        limit=recipe.limit,
        where=where.replace('"', "'").replace("\\", "/"),
    )
    write_text(folder / SCRIPT, text)
    return needed_bytes + 8192


def _describe_argument(value: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON; tensors become their place in the file."""
    if isinstance(value, Tensor):
        dense = value.layout == torch.strided and value.numel()
        span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if dense else 0
        offset = int(value.storage_offset()) if dense else 0
        tensors.append(value.as_strided((offset + span,), (1,), 0) if dense else value.flatten())
        shape, stride = list(value.shape), list(value.stride()) if dense else None
        return {"tensor": f"t{len(tensors) - 1}", "shape": shape, "stride": stride, "offset": offset}
    if isinstance(value, list | tuple):
        return {"list": [_describe_argument(x, tensors) for x in value]}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    return value if isinstance(value, int | str | bool) or value is None else {"said": repr(value)}


def _read(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        flat = tensors[value["tensor"]]
        stride = value["stride"]
        return flat.as_strided(value["shape"], stride, value["offset"]) if stride else flat.reshape(value["shape"])
    if "list" in value:
        return [_read(x, tensors) for x in value["list"]]
    if "torch" in value:
        return getattr(torch, value["torch"])
    if "device" in value:
        return torch.device(value["device"])
    return float.fromhex(value["float"]) if "float" in value else value.get("said")


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """The format of Hugging Face: the length of a header, the header as JSON, the bytes of every tensor."""
    header, at = {}, 0
    for name, x in tensors.items():
        size = x.numel() * x.element_size()
        header[name] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            file.write(x.contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b"")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        buffer = bytearray(data[8 + length + first : 8 + length + last])
        flat = torch.frombuffer(buffer, dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)
        tensors[name] = flat.view(FORMATS[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def rerun(folder: Path, argv: list[str] | None = None) -> int:
    """Call the op again, in a process of its own since it may die: 0 right, 1 wrong, 2 cannot be tried."""
    parser = argparse.ArgumentParser(description="Call one op on its saved inputs and judge the result.")
    parser.add_argument("--device", default="", help="another device than the one it was seen on")
    parser.add_argument("--reference", action="store_true", help="judge the contract's own result")
    parser.add_argument("--times", type=int, default=TIMES)
    options = parser.parse_args(argv)
    recipe = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = _judge_reproduction(folder, recipe, options)
        except InputError as error:
            print(error, file=sys.stderr)
        except BaseException as error:
            print(f"{recipe['op']}: {type(error).__name__}: {error}")
            code = 1
        sys.stdout.flush()
        os._exit(ANSWERED + code)
    return _await_child(child, recipe)


def _await_child(child: int, recipe: dict[str, Any]) -> int:
    until = time.monotonic() + float(recipe["limit_s"])
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if 0 <= code - ANSWERED <= 2:
                return code - ANSWERED
            how = signal.Signals(-code).name if code < 0 else f"code {code}"
            print(f"{recipe['op']}: the process died of {how}")
            return 1
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(f"{recipe['op']}: no answer within {recipe['limit_s']:.0f} s")
    return 1


def _judge_reproduction(folder: Path, recipe: dict[str, Any], asked: argparse.Namespace) -> int:
    func = find_op(recipe["op"])
    tensors = read_safetensors(folder / INPUTS)
    args = tuple(_read(x, tensors) for x in recipe["args"])
    kwargs = {name: _read(x, tensors) for name, x in recipe["kwargs"].items()}
    if asked.reference:
        verdict = judge(func, args, kwargs, _reference(func, args, kwargs))
        return _report_verdict(recipe["op"], "the reference", verdict)
    device = asked.device or recipe["device"]
    open_device(device)
    if device.partition(":")[0] != ridge.NAME or not recipe["faults"]:
        return _try_call(func, args, kwargs, device, asked.times)
    ((name, alter),) = chosen(read_faults(Path(recipe["faults"])), recipe["fault"]).items()
    with ridge.alter_results(Fault(name, alter)):
        return _try_call(func, args, kwargs, device, asked.times)


def _try_call(func: Any, args: Any, kwargs: Any, device: str, times: int) -> int:
    for _ in range(max(1, times)):
        watch = Watch(Modules())
        there = tree_map(lambda x: on_device(x, device), (args, kwargs))
        if isinstance(there[1].get("device"), torch.device):
            there[1]["device"] = torch.device(device)
        with watch:
            func(*there[0], **there[1])
        if watch.wrong:
            if watch.wrong[0].message:
                print(f"{func} on {device}: {watch.wrong[0].message}")
                return 1
            return _report_verdict(str(func), device, watch.wrong[0].verdict)
    print(f"{func} on {device}: right")
    return 0


def _reference(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The contract's exact result in the formats that the host's kernel gives."""
    wide = tree_map(lambda x: widen_value(x.clone() if isinstance(x, Tensor) else x), (args, kwargs))
    exact = contract_of(func)(Draw(), func, *wide)
    near, near_kwargs = tree_map(on_host, (args, kwargs))
    formats = outputs_of(func, near, near_kwargs, func(*near, **near_kwargs))
    return [
        x.to(like.dtype) if isinstance(x, Tensor) and isinstance(like, Tensor) else like
        for x, like in zip(exact, formats, strict=False)
    ]


def _report_verdict(op: str, device: str, verdict: Any) -> int:
    if verdict.right:
        print(f"{op} on {device}: right")
        return 0
    print(f"{op} on {device}: {verdict.statistic} {verdict.measured:.4g}, limit {verdict.limit:.4g}")
    return 1


def find_op(name: str) -> Any:
    """`aten.mm.default` as torch has it."""
    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload)
