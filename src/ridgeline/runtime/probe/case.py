"""What is measured: a case is a kernel to time, with the group and the tier it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ridgeline.ir.kernel import Kernel

RESULTS = (
    *("s", "spread", "runs", "ok", "error", "why", "burst_s", "timer", "power_w", "energy_j", "clock_mhz"),
    *("left_out", "waited", "slowdown", "beside_slowdown"),
)
"""Keys of a row that are measured; every other key identifies it."""
TRAFFIC = ("copy", "read", "write")  # whose `cold` is asked for; of other ops it is found
SCORE_BYTES = 12  # that attention without a fused kernel holds for a query and a key
LOSS_BUFFERS = 6.0  # times its operands that a cross entropy holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement to take.

    kernel        what runs
    group, tier   what `--only` names; lower tiers are taken first
    limit_s       seconds after which the process that runs it is given up
    """

    kernel: Kernel
    group: str
    tier: int = 0
    limit_s: float = 60.0

    def __getitem__(self, name: str) -> Any:
        return self.kernel.dims[name] if name in self.kernel.dims else self.kernel.words[name]

    def identity(self) -> dict[str, Any]:
        """The keys of the row that say what was measured."""
        kernel = self.kernel
        return {"op": kernel.op, "impl": kernel.impl, "dtype": kernel.dtype, **kernel.dims, **kernel.words}

    def key(self) -> str:
        """The identity as text, the same for equal cases."""
        return json.dumps(self.identity(), sort_keys=True)

    def message(self) -> dict[str, Any]:
        """The case as plain values, which another process turns back with `read_case`."""
        return {"identity": self.identity(), "group": self.group, "tier": self.tier, "limit_s": self.limit_s}


def make_case(
    *, op: str, impl: str, dtype: str, dims: Iterable[tuple[str, Any]], group: str, tier: int = 0, limit_s: float = 60.0
) -> Case:
    """A case from its sizes and words in the order they are written."""
    dims_by_name = dict(dims)
    words = {name: value for name, value in dims_by_name.items() if isinstance(value, str)}
    sizes = {name: value for name, value in dims_by_name.items() if name not in words}
    kernel = Kernel(op=op, impl=impl, dtype=dtype, dims=sizes, words=words)
    return Case(kernel=kernel, group=group, tier=tier, limit_s=limit_s)


def read_case(message: dict[str, Any]) -> Case:
    """The case that another process wrote as a message."""
    op, impl, dtype, *dims = message["identity"].items()
    options = {name: message[name] for name in ("group", "tier", "limit_s")}
    return make_case(op=op[1], impl=impl[1], dtype=dtype[1], dims=dims, **options)


def row_key(row: dict[str, Any]) -> str:
    """What a row measures, whatever its results are; `cold` counts as a result of all but copies, reads and writes.

    >>> row_key({"op": "h2d", "bytes": 8, "s": 1.0, "ok": True, "cold": True})
    '{"bytes": 8, "op": "h2d"}'
    """
    results = RESULTS if row.get("op") in TRAFFIC else (*RESULTS, "cold")
    return json.dumps({name: row[name] for name in sorted(row) if name not in results})


def buffer_bytes_of(case: Case) -> float:
    """Memory a case holds while it runs, references of its check not counted."""
    kernel = case.kernel
    if kernel.impl == "math" and kernel.op.startswith("attention"):
        scores = case["batch"] * case["heads"] * case["query"] * case["key"]
        return float(SCORE_BYTES * scores) + kernel.bytes
    return kernel.bytes * (LOSS_BUFFERS if kernel.op == "cross_entropy" else 1.0)
