"""Cases of the links between ranks: sends in pairs, collectives over sizes, and a product beside a collective."""

from __future__ import annotations

from itertools import product
from typing import Any

from ridgeline.runtime.probe.case import Case, make_case

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
SIZES = (1 << 20, 1 << 26, 1 << 13, 1 << 23, 1 << 28, 1 << 16, 1 << 10, 1 << 18, 1 << 30)


def link_cases(ranks: int, nodes: int, backend: str) -> list[Case]:
    """Payloads in bytes as nccl-tests counts them: of the whole tensor that is reduced, gathered or exchanged."""
    cases = []
    for at, (size, op) in enumerate(product(SIZES, ("send_recv", *COLLECTIVES))):
        tier = 0 if at < 12 else 1
        if op == "send_recv":
            spans = [count for count in (1, 2) if (count == 1 and ranks > nodes) or (count == 2 and nodes > 1)]
            cases += [_link_case(op, tier, bytes=size, ranks=2, nodes=span, backend=backend) for span in spans]
        else:
            cases.append(_link_case(op, tier, bytes=size, ranks=ranks, nodes=nodes, backend=backend))
    for partner in COLLECTIVES[:4]:
        dims = {"m": 4096, "n": 8192, "k": 8192, "beside": partner, "bytes": 1 << 28, "ranks": ranks}
        dims |= {"nodes": nodes, "backend": backend}
        cases.append(_link_case("overlap", 2, "bf16", **dims))
    return cases


def _link_case(op: str, tier: int, dtype: str = "bf16", **dims: Any) -> Case:
    return make_case(op=op, impl="torch", dtype=dtype, dims=tuple(dims.items()), group="interconnect", tier=tier)
