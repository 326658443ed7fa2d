"""Turn what a kernel takes of a multiprocessor into how many of its blocks and warps are there at once, by chip.

    blocks = min( blocks of the family,
                  warps of the family / warps of a block,
                  registers / (warps of a block x registers of a warp, by 256),
                  shared memory / (shared memory of a block + reserved, by 128) )

    occupancy = blocks x warps of a block / warps of the family

Registers of a warp are 32 times those of a thread. Clusters and what a launch sets aside for the cache are not counted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.hardware.chip import Chip

LIMITS = Path(__file__).with_name("sm_limits.toml")
WARP = 32
REGISTER_UNIT = 256
SHARED_UNIT = 128
MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class SmLimits:
    """What one multiprocessor of a family holds; shared memory in bytes."""

    capability: str
    warps: int
    blocks: int
    registers: int
    shared: int
    block_shared: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What a kernel takes: of a thread registers, of a block threads and bytes of shared memory.

    registers   0 where nobody knows; `registers_low`, `registers_high` where they are an estimate
    source      where the registers come from: `cubin`, `estimate`
    """

    name: str
    target: str = ""
    threads: int = 0
    registers: int = 0
    registers_low: int = 0
    registers_high: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How full a kernel leaves a multiprocessor: blocks at once, share of its warps, and what limits it."""

    chip: str
    blocks: int
    warps: int
    share: float
    bound: str


@cache
def sm_limits() -> Mapping[str, SmLimits]:
    """Limits by family of chips."""
    with LIMITS.open("rb") as stream:
        return {family: SmLimits(**row) for family, row in tomllib.load(stream).items()}


def occupancy(kernel: KernelResources, chip: Chip) -> Occupancy:
    """How many blocks of a kernel a multiprocessor of a chip holds.

    >>> from ridgeline.hardware.load import chip
    >>> taken = KernelResources(name="matmul", threads=256, registers=128, shared_bytes=65536)
    >>> occupancy(taken, chip("h100-sxm")).blocks, occupancy(taken, chip("l4")).bound
    (2, 'shared memory')
    """
    limits = sm_limits().get(chip.family)
    if limits is None:
        families = ", ".join(sm_limits())
        raise InputError(
            Problem(path="chip", given=f"{chip.id} ({chip.family or 'no family'})", expected=f"a chip of {families}")
        )
    warps = -(-max(kernel.threads, 1) // WARP)
    most_blocks = {"blocks": limits.blocks, "warps": limits.warps // warps}
    if kernel.registers:
        of_warp = -(-kernel.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        most_blocks["registers"] = limits.registers // (of_warp * warps)
    shared_bytes = -(-kernel.shared_bytes // SHARED_UNIT) * SHARED_UNIT + limits.reserved_bytes
    if kernel.shared_bytes > limits.block_shared:
        most_blocks["shared memory"] = 0
    elif kernel.shared_bytes:
        most_blocks["shared memory"] = limits.shared // shared_bytes
    bound = min(most_blocks, key=lambda word: most_blocks[word])
    blocks = most_blocks[bound]
    return Occupancy(
        chip=chip.id, blocks=blocks, warps=blocks * warps, share=blocks * warps / limits.warps, bound=bound
    )
