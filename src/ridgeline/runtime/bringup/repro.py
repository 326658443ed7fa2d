"""What all parts of a run share, and a minimal reproduction of each finding: a script beside the op's inputs.

    session.note(wrong)                    wrong calls become findings with reproductions
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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError
from ridgeline.core.files import write_text
from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import Args, Draw, HostCall, Kwargs, OpVerdict, Outputs, clone_tensors
from ridgeline.runtime.bringup.capture import Modules, OpPlace, Watch, WrongCall
from ridgeline.runtime.bringup.contracts import contract_of, outputs_of
from ridgeline.runtime.bringup.devices import open_device
from ridgeline.runtime.bringup.fake_device import Lacks, on_device, on_host
from ridgeline.runtime.bringup.faults import Fault, choose_faults, read_faults
from ridgeline.runtime.bringup.findings import BringUp, OpFinding, Rates, unheard
from ridgeline.runtime.bringup.guard import Guard, OpEntry
from ridgeline.runtime.bringup.judge import judge, widen_value
from ridgeline.runtime.bringup.target import Target

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


def save(folder: Path, recipe: Recipe, args: Args, kwargs: Kwargs, room: int = MOST_BYTES) -> int:
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
    text = TEMPLATE.format(**asdict(recipe), where=where.replace('"', "'").replace("\\", "/"))
    write_text(folder / SCRIPT, text)
    return needed_bytes + 8192


def _describe_argument(value: object, tensors: list[Tensor]) -> object:
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


def _read(value: object, tensors: dict[str, Tensor]) -> Any:
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


def _await_child(child: int, recipe: JsonObject) -> int:
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


def _judge_reproduction(folder: Path, recipe: JsonObject, asked: argparse.Namespace) -> int:
    func = find_op(recipe["op"])
    tensors = read_safetensors(folder / INPUTS)
    args = tuple(_read(x, tensors) for x in recipe["args"])
    kwargs = {name: _read(x, tensors) for name, x in recipe["kwargs"].items()}
    if asked.reference:
        verdict = judge(func, args, kwargs, _reference(func, args, kwargs))
        return _report_verdict(recipe["op"], "the reference", verdict)
    device = asked.device or recipe["device"]
    open_device(device)
    if device.partition(":")[0] != fake_device.NAME or not recipe["faults"]:
        return _try_call(func, args, kwargs, device, asked.times)
    ((name, alter),) = choose_faults(read_faults(Path(recipe["faults"])), recipe["fault"]).items()
    with fake_device.alter_results(Fault(name, alter)):
        return _try_call(func, args, kwargs, device, asked.times)


def _try_call(func: OpOverload, args: Args, kwargs: Kwargs, device: str, times: int) -> int:
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


def _reference(func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs:
    """The contract's exact result in the formats that the host's kernel gives."""
    wide = tree_map(widen_value, clone_tensors((args, kwargs)))
    exact = contract_of(func)(Draw(), func, *wide)
    near, near_kwargs = tree_map(on_host, (args, kwargs))
    formats = outputs_of(func, near, near_kwargs, func(*near, **near_kwargs))
    return [
        x.to(like.dtype) if isinstance(x, Tensor) and isinstance(like, Tensor) else like
        for x, like in zip(exact, formats, strict=False)
    ]


def _report_verdict(op: str, device: str, verdict: OpVerdict) -> int:
    if verdict.right:
        print(f"{op} on {device}: right")
        return 0
    print(f"{op} on {device}: {verdict.statistic} {verdict.measured:.4g}, limit {verdict.limit:.4g}")
    return 1


def find_op(name: str) -> OpOverload:
    """`aten.mm.default` as torch has it."""
    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload)


WHOLE = "model"  # the module of what the model itself calls, outside of its parts


@dataclass(slots=True, kw_only=True)
class Session:
    """One run.

    folder      where reproductions go; None: nowhere
    faults      the file that the fault came from, for reproductions to load it again
    position    where a part that was interrupted goes on
    kept        is called when something is known that must not be lost
    personality    whose arithmetic the fake device has
    room        bytes that reproductions may still take
    lacks       kernels that the fake device does without
    rates       what is possible on the chip; graph_breaks: whether dynamo is asked where it would leave its graph
    """

    target: Target
    device: str
    found: BringUp
    seed: int = 0
    fault: Fault | None = None
    faults: str = ""
    guard: Guard = field(default_factory=Guard)
    folder: Path | None = None
    position: int = 0
    kept: Callable[[], None] = lambda: None
    tell: Callable[[str], None] = unheard
    room: int = MOST_BYTES
    personality: str = ""
    lacks: Lacks = Lacks()
    rates: Rates | None = None
    graph_breaks: bool = False
    testbeds: dict[str, Any] = field(default_factory=dict)

    def note(self, wrong: list[WrongCall]) -> None:
        """Take wrong calls in: one finding for each op and format, with the smallest inputs that show it."""
        by_key: dict[tuple[str, str], list[WrongCall]] = {}
        for wrong_call in wrong:
            by_key.setdefault((wrong_call.op, wrong_call.dtype), []).append(wrong_call)
        for calls in by_key.values():
            first, smallest = calls[0], min(calls, key=_bytes)
            new = self.found.add(OpFinding(
                op=first.op, module=first.place.module or WHOLE, phase=first.place.phase, dtype=first.dtype,
                statistic=first.verdict.statistic, measured=first.verdict.measured, limit=first.verdict.limit,
                times=len(calls), message=first.message,
            ))  # fmt: skip
            if new:
                self.reproduce(first.op, first.dtype, smallest)

    def reproduce(self, op: str, dtype: str, wrong: WrongCall) -> None:
        """Save the inputs of a call beside a script, and name it in the finding of its op and format."""
        if self.folder is None:
            return
        place = (
            self.folder / f"{len(self.found.findings):02d}-{op.replace('.', '-').replace(':', '-')}-{dtype or 'any'}"
        )
        verdict = wrong.verdict
        recipe = Recipe(
            op=op, device=self.device, module=wrong.place.module, phase=wrong.place.phase, statistic=verdict.statistic,
            measured=verdict.measured, limit=verdict.limit, faults=self.faults,
            fault="" if self.fault is None else self.fault.name,
        )  # fmt: skip
        try:
            folder = save(place, recipe, wrong.args, wrong.kwargs, self.room)
        except OSError as error:
            self.found.not_run["repro"] = str(error)
            return
        self.room -= folder
        if not folder:
            self.found.not_run[f"repro of {op}"] = f"its inputs take more than the {self.room:,} bytes that are left"
            return
        self.found.findings = tuple(
            replace(finding, repro=str(place / SCRIPT)) if (finding.op, finding.dtype) == (op, dtype) else finding
            for finding in self.found.findings
        )

    def saw(self, func: OpOverload, host: HostCall, entry: OpEntry) -> None:
        """A call that ended the process before, now computed by the host: its inputs are the reproduction."""
        previous = next(
            (f for f in self.found.findings if (f.op, f.dtype) == (entry.op, entry.dtype) and not f.repro), None
        )
        if previous is None or previous.statistic not in ("died", "hung"):
            return
        verdict = OpVerdict(right=False, statistic=previous.statistic, measured=previous.measured, limit=previous.limit)
        place = OpPlace(module=previous.module, phase=previous.phase)
        wrong = WrongCall(op=str(func), place=place, dtype=entry.dtype, verdict=verdict, args=host[0], kwargs=host[1])
        self.reproduce(entry.op, entry.dtype, wrong)
        self.kept()


def _bytes(wrong: WrongCall) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves((wrong.args, wrong.kwargs)) if isinstance(x, Tensor))
