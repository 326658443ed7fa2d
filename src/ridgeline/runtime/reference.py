"""Turn a profile's rows into the figures that preflight compares: plain seconds of the same shapes, no prediction."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "product": {"op": "gemm", "impl": "torch", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096},
    "copy": {"op": "copy", "bytes": 1 << 30, "cold": True},
    "h2d": {"op": "h2d", "bytes": 1 << 26, "pinned": True},
    "launch": {"op": "launch", "kind": "kernel"},
    "link": {"op": "send_recv", "bytes": 1 << 26, "nodes": 1},
    "all_reduce": {"op": "all_reduce", "bytes": 1 << 26},
}
"""The row of a profile that each figure is."""
CPU_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "copy": {"op": "copy", "bytes": 1 << 24, "cold": True},
    "launch": {"op": "launch", "kind": "kernel"},
}


def figures_of(table: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by figure; over ranks the median. Figures whose row is absent are absent.

    >>> figures_of({"rows": [{"op": "launch", "kind": "kernel", "s": 4e-6, "ok": True}]})
    {'launch': 4e-06}
    """
    device = table.get("device")
    is_cpu = isinstance(device, dict) and device.get("type") == "cpu"
    figures = {}
    for name, shape in (CPU_SHAPES if is_cpu else SHAPES).items():
        rows = [row for row in table["rows"] if all(row.get(key) == value for key, value in shape.items())]
        seconds = [float(row["s"]) for row in rows if row.get("ok") and isinstance(row.get("s"), (int, float))]
        if seconds:
            figures[name] = statistics.median(seconds)
    return figures
