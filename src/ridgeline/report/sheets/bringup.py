"""What `ridgeline bringup` prints."""

from __future__ import annotations

from typing import Literal, TypedDict


class WrongOpSheet(TypedDict):
    """An op that gave a wrong result, or none.

    op          as torch names it, with its overload
    module      path in the model, or `standing set` with what was hard about the input
    phase       forward, backward or optimizer
    statistic   what broke the op's contract: beyond, power, bias, shift, row, column, nonfinite, shape, unequal, raised
    measured    its value; limit: what the contract allows
    times       calls that were wrong
    message     of an op that raised
    """

    op: str
    module: str
    phase: str
    dtype: str
    statistic: str
    measured: float
    limit: float
    times: int
    message: str


class InventorySheet(TypedDict):
    """What the training step dispatched on the device: each op with its number of calls."""

    ops: dict[str, int]
    signatures: int


class CoverageSheet(TypedDict):
    """Calls of the standing set, ops that nothing could judge, and what of the architecture was left out."""

    probed: int
    unjudged: dict[str, int]
    left_out: list[str]


class BringUpSheet(TypedDict):
    """Whether a device computes a model right.

    verdict    right, or wrong where there is a finding
    fault      the fault that was loaded, and how often it answered; null without one
    """

    kind: Literal["bringup"]
    model: str
    device: str
    verdict: Literal["right", "wrong"]
    findings: list[WrongOpSheet]
    inventory: InventorySheet
    coverage: CoverageSheet
    fault: str | None
    fired: int | None


class FaultsSheet(TypedDict):
    """Every fault of a file in turn; caught: those with a finding."""

    kind: Literal["bringup-faults"]
    caught: int
    silent: list[str]
    faults: list[BringUpSheet]
