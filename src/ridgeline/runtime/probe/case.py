"""What is measured: a case is the identity of one row of a profile, with the group and the tier it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

RESULTS = (
    *("s", "spread", "runs", "ok", "error", "why", "burst_s", "timer", "power_w", "energy_j", "clock_mhz"),
    *("left_out", "waited", "slowdown", "beside_slowdown"),
)
"""Keys of a row that are measured; every other key identifies it."""
TRAFFIC = ("copy", "read", "write")  # whose `cold` is asked for; of other ops it is found
ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
ATTENTION = ("attention_forward", "attention_backward", "attention_decode")
PASSES = {"rmsnorm": 2, "layernorm": 2, "add_rmsnorm": 4, "swiglu": 3, "rope": 2, "softmax": 2, "cross_entropy": 1}
PASSES |= {"embedding": 2, "add": 3}
"""Times a row op moves rows x columns through memory, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement to take.

    op, impl, dtype   what runs, which software's kernel, and the format of its operands
    dims              the row's dimensions in the order they are written
    group, tier       what `--only` names; lower tiers are taken first
    limit_s           seconds after which the process that runs it is given up
    """

    op: str
    impl: str
    dtype: str
    dims: tuple[tuple[str, Any], ...]
    group: str
    tier: int = 0
    limit_s: float = 60.0

    def __getitem__(self, name: str) -> Any:
        return dict(self.dims)[name]

    def identity(self) -> dict[str, Any]:
        """The keys of the row that say what was measured."""
        return {"op": self.op, "impl": self.impl, "dtype": self.dtype, **dict(self.dims)}

    def key(self) -> str:
        """The identity as text, the same for equal cases."""
        return json.dumps(self.identity(), sort_keys=True)


def row_key(row: dict[str, Any]) -> str:
    """What a row measures, whatever its results are; `cold` counts as a result of all but copies, reads and writes.

    >>> row_key({"op": "h2d", "bytes": 8, "s": 1.0, "ok": True, "cold": True})
    '{"bytes": 8, "op": "h2d"}'
    """
    found = RESULTS if row.get("op") in TRAFFIC else (*RESULTS, "cold")
    return json.dumps({name: row[name] for name in sorted(row) if name not in found})


def flops_of(case: Case) -> float:
    """Operations of one call; a causal attention counts half of its square, a backward 2.5 forwards."""
    dims = dict(case.dims)
    if case.op in ("gemm", "grouped_gemm", "sustained", "overlap") and "m" in dims:
        return float(2 * dims.get("groups", 1) * dims["m"] * dims["n"] * dims["k"])
    if case.op in ATTENTION:
        square = dims["batch"] * dims["heads"] * dims["query"] * dims["key"] * dims["head_dim"] * 4.0
        return float(square * (0.5 if dims["causal"] else 1.0) * (2.5 if case.op == "attention_backward" else 1.0))
    return 0.0


def bytes_of(case: Case) -> float:
    """Bytes one call must move, each input read once and each output written once."""
    dims, item = dict(case.dims), ITEM_BYTES.get(case.dtype, 1)
    if "m" in dims:
        m, n, k, groups = dims["m"], dims["n"], dims["k"], dims.get("groups", 1)
        out = 2 if case.dtype in ("fp8", "bf16", "fp16") else 4
        return float(groups * ((m * k + k * n) * item + m * n * out))
    if case.op in ATTENTION:
        heads = dims["heads"] * dims["query"] * 2 + dims["kv_heads"] * dims["key"] * 2
        return float(item * dims["batch"] * dims["head_dim"] * heads * (2.5 if "backward" in case.op else 1))
    if "rows" in dims:
        return float(PASSES.get(case.op, 2) * dims["rows"] * dims["columns"] * item)
    if "parameters" in dims:
        return float(dims["parameters"] * item * 7)
    return float(dims.get("bytes", 0)) * (2 if case.op == "copy" else 1)


def buffer_bytes_of(case: Case) -> float:
    """Memory a case holds while it runs, references of its check not counted."""
    extra = 1.0
    if case.impl == "math" and case.op in ATTENTION:
        dims = dict(case.dims)
        return float(12 * dims["batch"] * dims["heads"] * dims["query"] * dims["key"]) + bytes_of(case)
    if case.op == "cross_entropy":
        extra = 6.0
    return bytes_of(case) * extra
