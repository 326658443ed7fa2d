"""Which parts of a layer a plan computes again."""

from __future__ import annotations

from ridgeline.plan.plan import Recompute

PARTS = {"attention": "attention", "mixer": "mixer", "mlp": "ffn", "moe": "ffn", "activation": "activation"}
"""What selective recompute names, and the part of a layer that is."""


def recomputed_parts(recompute: Recompute, block: str, *, covered: bool) -> frozenset[str]:
    """Parts of a layer of this block that are computed again; `covered` by the number of layers, or beyond it.

    >>> sorted(recomputed_parts(Recompute(kind="selective", parts=("attention", "moe")), "0", covered=True))
    ['attention', 'ffn']
    >>> recomputed_parts(Recompute(kind="full", layers=0), "0", covered=False)
    frozenset()
    """
    kind = recompute.blocks.get(block, recompute.kind) if covered else recompute.rest
    if kind == "full":
        return frozenset({"layer"})
    return frozenset(PARTS[part] for part in recompute.parts) if kind == "selective" else frozenset()
