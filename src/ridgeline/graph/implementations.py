"""Who could run a region of a graph as fewer kernels, and what each implementation takes beside the best possible.

    eager       PyTorch op by op                           inductor     torch.compile's kernels, as `joined_kernels`
    liger       Liger-Kernel's Triton kernels              te           Transformer Engine's
    own         Triton kernels of this software's run      vendor       epilogues of the vendor's products

A library's kernel moves what a compiler's joined one moves, at `share` of its rate, and its host takes `host_us` for
each call beside the launch. Shares are of published rows (`source`); where nobody published one it is 1 and assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ridgeline.core.evidence import Evidence

RegionKind = Literal[
    "norm", "residual norm", "rotary", "gated activation", "activation", "loss", "router", "permutation", "softmax",
    "cast", "optimizer", "epilogue", "dropout", "pointwise",
]  # fmt: skip
"""What a region is, by the ops in it."""
LAUNCH_US = 6.7  # of a host for a kernel in eager PyTorch: measured on an H200's host
LIGER_BACKWARD_US = 300.0  # of Liger's norm backward whatever its size, from its published rows on H100 and A100


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A way to run regions of some kinds.

    kinds     of regions that it has kernels for
    share     of the rate that a compiler's kernel of the same bytes reaches
    host_us   of a call, beside launches; in a queue that is full, or a CUDA graph, it is hidden
    """

    id: str
    kinds: frozenset[RegionKind]
    share: float = 1.0
    host_us: float = 0.0
    backward_host_us: float = 0.0
    evidence: Evidence = Evidence.ASSUMED
    source: str = ""


IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        item.id: item
        for item in (
            Implementation(
                id="liger", kinds=frozenset({"norm", "residual norm", "rotary", "gated activation", "loss"}),
                host_us=40.0, backward_host_us=LIGER_BACKWARD_US, evidence=Evidence.ASSUMED,
                source="backward: Liger-Kernel's published rows of RMSNorm on H100 and A100; forward: nobody's",
            ),
            Implementation(
                id="te", kinds=frozenset({"norm", "residual norm", "rotary", "gated activation", "permutation"}),
                host_us=25.0, backward_host_us=25.0, source="Transformer Engine: kernels exist, no rows are published",
            ),
            Implementation(
                id="own", kinds=frozenset({"residual norm", "norm", "rotary", "gated activation", "loss"}),
                host_us=15.0, backward_host_us=15.0, source="kernels of `ridgeline run` in Triton",
            ),
            Implementation(
                id="vendor", kinds=frozenset({"epilogue", "optimizer", "norm"}), evidence=Evidence.ASSUMED,
                source="cuBLASLt epilogues, fused AdamW, native norms",
            ),
        )
    }
)  # fmt: skip
"""Libraries beside eager PyTorch and its compiler, by their ids."""
