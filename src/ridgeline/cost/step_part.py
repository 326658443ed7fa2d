"""The parts that a step's seconds are told apart by: what each is, and what limits it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

__all__ = ("AXES", "COMPUTE", "SECTION_PARTS", "Bound", "StepPart")
Bound = Literal["compute", "memory", "network", "host"]


class StepPart(StrEnum):
    """A share of a step, in the order breakdowns list them. The parts of a step sum to it.

    bound     what limits it; products and attention are told by their own ops where these are at hand
    meaning   what it is, in one line
    """

    bound: Bound
    meaning: str

    def __new__(cls, name: str, bound: Bound, meaning: str) -> Self:
        part = str.__new__(cls, name)
        part._value_, part.bound, part.meaning = name, bound, meaning
        return part

    MATMUL = "matmul", "compute", "matrix products, recomputed ones included"
    ATTENTION = "attention", "compute", "scores, softmax and weighted values, or a state scan"
    MEMORY = "memory", "memory", "norms, activations, residuals, casts, loss: bound by memory traffic"
    KERNEL = "kernel", "host", "around kernels, and waiting for the host to issue them"
    TP = "tp", "network", "exposed tensor-parallel communication"
    CP = "cp", "network", "exposed context-parallel exchange"
    EP = "ep", "network", "exposed dispatch to experts and back"
    PP = "pp", "network", "exposed sends between pipeline stages"
    DP = "dp", "network", "exposed gradient reduction and weight gathering"
    SHARD = "shard", "network", "exposed gathering and scattering of sharded weights"
    HOST = "host", "network", "exposed copies to and from host memory"
    BUBBLE = "bubble", "compute", "pipeline ranks waiting for each other"
    OPTIMIZER = "optimizer", "memory", "updating weights and states"
    WAITING = "waiting", "host", "the slowest node, and what a step costs whatever it does"


COMPUTE = (StepPart.MATMUL, StepPart.ATTENTION, StepPart.MEMORY, StepPart.KERNEL)  # on a rank's compute stream
AXES = (StepPart.TP, StepPart.CP, StepPart.EP)  # communication inside a section's passes
SECTION_PARTS = (*COMPUTE, *AXES)  # what a priced section consists of, in the order of its columns
