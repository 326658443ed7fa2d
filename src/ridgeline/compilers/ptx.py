"""Turn PTX into what a kernel takes of a chip and what it does in one thread block.

PTX has as many registers as its writer likes; which ones are alive at once decides how many the assembler needs. It
orders instructions anew, so that fewer are alive than in the text, unless they belong to the matrix unit:

    registers = 8 + 0.6 x alive                alive = the most at any instruction, in registers of 32 bits
                alive + 5                      with instructions of the matrix unit

Of 45 kernels that Triton 3.9 wrote for capabilities 8.0, 9.0 and 10.0 (norms, softmax, gated activations, Adam and
products) the assembler's number lies at 0.60 to 1.46 of the estimate, half of them within 13 %. A cubin states the
number: where there is one beside the text, that counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ridgeline.compilers.build_graph import GraphBuilder
from ridgeline.compilers.multiprocessor import MOST_REGISTERS, KernelResources
from ridgeline.compilers.program_text import ProgramSource, refuse_program
from ridgeline.core.records import dataclass
from ridgeline.ir.op_graph import OpGraph

MOST_INSTRUCTIONS = 30_000  # of a kernel whose registers are estimated
MOST_PASSES = 60  # over its blocks until what is alive no longer changes
MOST_SECTIONS = 4096
OWN_REGISTERS, SHARE = 8, 0.6  # what the assembler takes for itself, and leaves of those alive in the text
TENSOR_REGISTERS = 5  # for itself, where the matrix unit's operands decide
LOW, HIGH = 0.6, 1.46  # around the estimate
_ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*\(")
_DIRECTIVE = re.compile(r"\.(reqntid|maxntid|maxnreg|minnctapersm)\s+([\d,\s]+)")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+\d+\s+)?\.[bsuf](\d+)\s+[\w$.]+\[(\d{1,9})\]")
_LOCAL = re.compile(r"\.local\s+(?:\.align\s+\d+\s+)?\.b8\s+[\w$.]+\[(\d{1,9})\]")
_DECLARED = re.compile(r"\.reg\s+\.(\w+)\s+(%[\w$]+?)(?:<(\d{1,7})>)?\s*;")
_REGISTER = re.compile(r"%[a-zA-Z_$]+\d+")
_LABEL = re.compile(r"^\s*([$\w]+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([$\w]+)")
_NO_RESULT = ("st.", "bra", "bar.", "red.", "ret", "exit", "membar", "fence", "cp.async", "prefetch", "mbarrier.inval")
_WIDTHS = {
    "pred": 0.0,
    "b8": 0.5,
    "b16": 0.5,
    "b32": 1.0,
    "f32": 1.0,
    "s32": 1.0,
    "u32": 1.0,
    "b64": 2.0,
    "f64": 2.0,
    "b128": 4.0,
}
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class PtxKernel:
    """One entry of a PTX module.

    resources   what it takes of a chip
    loads, stores   bytes of global memory that one block reads and writes where each instruction runs once
    tensor_ops  instructions of the matrix unit
    """

    resources: KernelResources
    loads: float = 0.0
    stores: float = 0.0
    tensor_ops: int = 0
    instructions: int = 0


def recognises(source: ProgramSource) -> bool:
    return bool(re.search(r"^\s*\.version\s+\d", source.head, re.MULTILINE)) and ".target" in source.head


def read_ptx(source: ProgramSource, shared_bytes: int = 0) -> tuple[PtxKernel, ...]:
    """The kernels of a PTX module; `shared_bytes` is what a launch adds that the text does not say."""
    target = re.search(r"\.target\s+(\w+)", source.text[:4000])
    matches: list[PtxKernel] = []
    starts = [match.start() for match in _ENTRY.finditer(source.text)][:1000]
    for start, end in zip(starts, [*starts[1:], len(source.text)], strict=True):
        matches.append(_kernel(source.text[start:end], target.group(1) if target else "", shared_bytes))
    if not matches:
        raise refuse_program(source.path, "PTX without an entry", "a module with a kernel", "was it cut off?")
    return tuple(matches)


def read(source: ProgramSource) -> OpGraph:
    """A graph with an op for each kernel: the global memory that one block goes through, each instruction once."""
    builder = GraphBuilder(source.path, "PTX", by="ptx")
    for kernel in read_ptx(source):
        read_bytes, written = (builder.tensor((round(size),), "u8") for size in (kernel.loads, kernel.stores))
        builder.op(kernel.resources.name, "custom", [read_bytes], [written])
    builder.note("figures are those of one block, with every instruction once: PTX states no sizes and no grid")
    return builder.graph()


def _kernel(text: str, target: str, shared_bytes: int) -> PtxKernel:
    name = _ENTRY.match(text)
    head, _, body = text.partition("{")
    threads = 0
    for word, numbers in _DIRECTIVE.findall(head):
        if word in ("reqntid", "maxntid"):
            threads = 1
            for number in re.findall(r"\d{1,5}", numbers)[:3]:
                threads *= int(number)
    static = sum(int(bits) // 8 * int(size) for bits, size in _SHARED.findall(body))
    lines = instruction_lines(body)
    work = Counter(_memory_words(lines))
    estimate = _estimated_registers(peak_registers(body, lines), uses_tensors=work["tensor"] > 0)
    resources = KernelResources(
        name=name.group(1)[:200] if name else "", target=target, threads=threads, registers=estimate,
        registers_low=round(estimate * LOW), registers_high=min(MOST_REGISTERS, round(estimate * HIGH)),
        shared_bytes=static + shared_bytes, local_bytes=sum(int(size) for size in _LOCAL.findall(body)),
        source="estimate" if estimate else "",
    )  # fmt: skip
    return PtxKernel(
        resources=resources, loads=work["load"] * max(threads, 1), stores=work["store"] * max(threads, 1),
        tensor_ops=work["tensor"], instructions=len(lines),
    )  # fmt: skip


def _estimated_registers(alive: float, *, uses_tensors: bool) -> int:
    """Registers of a thread, of those alive in the text; 0 where nobody could count them."""
    if not alive:
        return 0
    return min(MOST_REGISTERS, round(alive + TENSOR_REGISTERS if uses_tensors else OWN_REGISTERS + SHARE * alive))


def instruction_lines(body: str) -> list[str]:
    """Instructions and labels of a body, comments and debug marks left out; a statement over several lines is one."""
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    lines: list[str] = []
    begun = ""
    for raw in body.splitlines():
        line = raw.split("//", 1)[0].strip()
        if (
            not line
            or line[0] == "}"
            or line.startswith((".loc", ".reg", ".file", ".section", ".param", ".pragma", "{"))
        ):
            continue
        begun = f"{begun} {line}" if begun else line
        if line.endswith((";", ":")):
            lines.append(begun)
            begun = ""
        if len(begun) > 10_000:
            begun = ""
    return lines


def _memory_words(lines: Sequence[str]) -> dict[str, float]:
    """Bytes of global memory that a thread reads and writes, and instructions of the matrix unit."""
    work: dict[str, float] = {"load": 0.0, "store": 0.0, "tensor": 0.0}
    for line in lines:
        word = next((part for part in line.split() if "." in part and not part.startswith(("@", "%"))), "")
        parts = word.split(".")
        if word.startswith(("ld.global", "st.global")):
            width = next((int(part[1:]) for part in reversed(parts) if re.fullmatch(r"[busf]\d+", part)), 32) / 8
            many = next((_VECTORS[part] for part in parts if part in _VECTORS), 1)
            work["load" if word.startswith("ld") else "store"] += width * many
        elif word.startswith("cp.async") and "global" in word:
            size = re.search(r",\s*(\d{1,3})\s*[,;]", line) or re.search(r"0x([0-9a-f]{1,3})", line)
            work["load"] += float(int(size.group(1), 16 if "0x" in line else 10)) if size else 0.0
        elif word.startswith(("mma.", "wgmma.mma", "tcgen05.mma")):
            work["tensor"] += 1
    return work


def peak_registers(body: str, lines: Sequence[str]) -> float:
    """The most registers alive at once, in those of 32 bits; 0 where the kernel is too long to say."""
    if not 0 < len(lines) <= MOST_INSTRUCTIONS:
        return 0.0
    widths = {name: _WIDTHS.get(kind, 1.0) for kind, name, _ in _DECLARED.findall(body)}
    places: dict[str, int] = {}
    weights: list[float] = []
    reads, writes = [], []
    for line in lines:
        read, written = _operands(line)
        for name in (*read, *written):
            if name not in places:
                places[name] = len(places)
                weights.append(widths.get(re.sub(r"\d+$", "", name), 1.0))
        reads.append(sum(1 << places[name] for name in set(read)))
        writes.append(sum(1 << places[name] for name in set(written)))
    after = _successors(lines)
    alive = _alive(lines, reads, writes, after)
    by_width = {
        width: sum(1 << place for place, other_item in enumerate(weights) if other_item == width)
        for width in set(weights)
    }
    return max(
        (sum(width * (mask & here).bit_count() for width, mask in by_width.items()) for here in alive), default=0.0
    )


def _operands(line: str) -> tuple[list[str], list[str]]:
    """Registers that an instruction reads, and those it writes: the first operand, unless it stores or branches."""
    if line.endswith(":"):
        return [], []
    guard: list[str] = []
    if line.startswith("@"):
        condition, _, line = line.partition(" ")
        guard = _REGISTER.findall(condition)
        line = line.strip()
    word, _, operand_text = line.partition(" ")
    if word.startswith(_NO_RESULT):
        return guard + _REGISTER.findall(operand_text), []
    operand_text = operand_text.strip()
    first, _, other_operands = operand_text.partition("}," if operand_text.startswith("{") else ",")
    return guard + _REGISTER.findall(other_operands), _REGISTER.findall(first)


def _successors(lines: Sequence[str]) -> list[tuple[int, ...]]:
    labels = {match.group(1): place for place, line in enumerate(lines) if (match := _LABEL.match(line))}
    after: list[tuple[int, ...]] = []
    for place, line in enumerate(lines):
        following = (place + 1,) if place + 1 < len(lines) else ()
        branch = _BRANCH.search(line)
        if branch:
            target = labels.get(branch.group(1))
            jump = (target,) if target is not None else ()
            after.append((*jump, *following) if line.startswith("@") else jump)
        elif line.startswith(("ret", "exit")):
            after.append(())
        else:
            after.append(following)
    return after


def _alive(
    lines: Sequence[str], reads: Sequence[int], writes: Sequence[int], after: Sequence[tuple[int, ...]]
) -> list[int]:
    """Registers alive before each instruction, as bits, by going backwards until nothing changes."""
    before = [0] * len(lines)
    for _ in range(MOST_PASSES):
        has_changes = False
        for place in range(len(lines) - 1, -1, -1):
            behind = 0
            for following in after[place]:
                behind |= before[following]
            here = reads[place] | (behind & ~writes[place])
            if here != before[place]:
                before[place], has_changes = here, True
        if not has_changes:
            break
    return before
