"""What `ridgeline bringup` prints."""

from __future__ import annotations

from typing import Literal, TypedDict


class WrongOpSheet(TypedDict):
    """An op that gave a wrong result, or none.

    op          as torch names it, with its overload
    module      path in the model, or `standing set` with what was hard about the input
    phase       forward, loss, backward, optimizer or generation
    statistic   what broke the op's contract: beyond, power, bias, shift, row, column, nonfinite, shape, format,
                unequal; raised, died or hung where there was no result; a rung, an invariance or `race` where a
                bisection named the op
    measured    its value; limit: what the contract allows
    times       calls that were wrong
    message     of an op that raised or ended its process
    repro       a script beside its inputs that ends with 1 on the device; empty where none was saved
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
    repro: str


class CheckSheet(TypedDict):
    """A rung of the ladder, or an invariance, in one format.

    verdict     pass, fail or not run
    statistic   what was measured against a limit that noise draws through the reference give
    where       the first place beyond it: a layer, a parameter, a step
    op          the op that is to blame, where one was found
    reason      why it was not run
    """

    name: str
    format: str
    verdict: Literal["pass", "fail", "not run"]
    statistic: str
    measured: float
    limit: float
    where: str
    op: str
    reason: str


class DeterminismSheet(TypedDict):
    """The same step several times.

    same        whether every op gave the same bits every time
    reordered   ops whose bits differed within their contract: sums in another order, no finding
    races       ops whose results differed by more: findings
    reason      why it was not run
    """

    runs: int
    same: bool
    reordered: list[str]
    races: list[str]
    reason: str


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
    ladder, invariances    each with its verdict
    not_run    what could not be run, with the reason
    isolated   whether ops ran in a process that may die
    """

    kind: Literal["bringup"]
    model: str
    device: str
    verdict: Literal["right", "wrong"]
    findings: list[WrongOpSheet]
    ladder: list[CheckSheet]
    invariances: list[CheckSheet]
    determinism: DeterminismSheet
    not_run: dict[str, str]
    isolated: bool
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
