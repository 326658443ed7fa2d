"""The parts that a step's seconds are told apart by: what each is, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

Bound = Literal["compute", "memory", "network", "host"]


class StepPart(StrEnum):
    """A share of a step, in the order breakdowns list them. The parts of a step sum to it."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    MEMORY = "memory"
    KERNEL = "kernel"
    TP = "tp"
    CP = "cp"
    EP = "ep"
    PP = "pp"
    DP = "dp"
    SHARD = "shard"
    HOST = "host"
    BUBBLE = "bubble"
    OPTIMIZER = "optimizer"
    WAITING = "waiting"

    @property
    def bound(self) -> Bound:
        """What limits it; products and attention are told by their own ops where these are at hand."""
        return _ABOUT[self][0]

    @property
    def meaning(self) -> str:
        """What it is, in one line."""
        return _ABOUT[self][1]


_ABOUT: Mapping[StepPart, tuple[Bound, str]] = MappingProxyType(
    {
        StepPart.MATMUL: ("compute", "matrix products, recomputed ones included"),
        StepPart.ATTENTION: ("compute", "scores, softmax and weighted values, or a state scan"),
        StepPart.MEMORY: ("memory", "norms, activations, residuals, casts, loss: bound by memory traffic"),
        StepPart.KERNEL: ("host", "around kernels, and waiting for the host to issue them"),
        StepPart.TP: ("network", "exposed tensor-parallel communication"),
        StepPart.CP: ("network", "exposed context-parallel exchange"),
        StepPart.EP: ("network", "exposed dispatch to experts and back"),
        StepPart.PP: ("network", "exposed sends between pipeline stages"),
        StepPart.DP: ("network", "exposed gradient reduction and weight gathering"),
        StepPart.SHARD: ("network", "exposed gathering and scattering of sharded weights"),
        StepPart.HOST: ("network", "exposed copies to and from host memory"),
        StepPart.BUBBLE: ("compute", "pipeline ranks waiting for each other"),
        StepPart.OPTIMIZER: ("memory", "updating weights and states"),
        StepPart.WAITING: ("host", "the slowest node, and what a step costs whatever it does"),
    }
)
COMPUTE = (StepPart.MATMUL, StepPart.ATTENTION, StepPart.MEMORY, StepPart.KERNEL)  # on a rank's compute stream
AXES = (StepPart.TP, StepPart.CP, StepPart.EP)  # communication inside a section's passes
SECTION_PARTS = (*COMPUTE, *AXES)  # what a priced section consists of, in the order of its columns
