"""Turn a program into the notes on what of it libraries have no fast kernels for: a prediction's assumptions name them.

rows of products that are not aligned to 16 bytes        they miss the matrix unit
heads between two sizes that attention kernels have      they run as the wider one
experts that are launched one by one                     the host may not keep up
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

from ridgeline.core.units import DECIMAL
from ridgeline.cost.pricing import ALIGNED, PAIRED, SINGLE
from ridgeline.ir.ops import MatMul
from ridgeline.ir.program import Program
from ridgeline.lowering.softmax_core import kernel_head_dim
from ridgeline.models.spec import Attention, Moe
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario


def slow_paths(scenario: Scenario, program: Program, cores: float) -> Iterator[str]:
    """What of a step takes a slow path, a line each; nothing for most. `cores` as products are priced with."""
    if cores > 1:
        yield from _unaligned_products(program)
    resolved = resolve(scenario)
    blocks = scenario.model.blocks
    if resolved.attention == "flash":
        library = scenario.engine.kernel
        sizes = {block.mixer.head_dim for block in blocks if isinstance(block.mixer, Attention)}
        for size in sorted(size for size in sizes if kernel_head_dim(library, size) != size):
            wide = kernel_head_dim(library, size)
            yield f"heads of {size} run as heads of {wide}: attention kernels have no size between"
    if resolved.expert_launch == "sequential" and any(isinstance(block.ffn, Moe) for block in blocks):
        yield f"experts are launched one by one: engine {scenario.engine.id} names no grouped product"


def _unaligned_products(program: Program) -> Iterator[str]:
    """Products whose rows are not whole multiples of 16 bytes, by label."""
    found: dict[str, MatMul] = {}
    for section in program.sections:
        for op in section.forward:
            if isinstance(op, MatMul) and op.alignment < ALIGNED:
                found.setdefault(op.label, op)
    for label, op in found.items():
        rate = PAIRED if op.alignment >= 4 else SINGLE
        whole = 2 ** round(log2(ALIGNED / op.in_bytes))  # scales of a block format are not counted
        yield (
            f"{label}: rows of {op.n:g} and {op.k:g} elements are not aligned to 16 bytes and miss the matrix unit: "
            f"{rate / DECIMAL['T']:g} TFLOP/s a core, as measured on an H200; pad to a multiple of {whole}"
        )
