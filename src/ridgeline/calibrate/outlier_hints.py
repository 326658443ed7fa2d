"""Turn a case that is far off into a guess why, from what its prediction consists of and how well its kind is known.

A guess, not a finding: it names where to look first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from ridgeline.calibrate.validate import Parameters
from ridgeline.calibrate.validation import Case

FEW = 8  # runs of a chip or an engine below which its own parameters are hardly known
# a part of the step -> from which share on it is suspicious, and what it then means
SUSPECTS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "kernel": (0.15, "host-bound small model: launches are"),
        "ep": (0.2, "expert dispatch is"),
        "tp": (0.2, "tensor-parallel communication is"),
        "cp": (0.1, "context-parallel communication is"),
        "shard": (0.15, "gathering sharded weights is"),
        "dp": (0.15, "gradient exchange is"),
        "pp": (0.1, "sends between stages are"),
        "bubble": (0.25, "the pipeline bubble is"),
        "optimizer": (0.15, "the optimizer is"),
        "memory": (0.35, "memory-bound work is"),
        "attention": (0.4, "attention is"),
    }
)


def runs_known(parameters: Parameters) -> Counter[str]:
    """How many fitted runs each chip and each engine has."""
    return Counter(name for _, item in parameters.residuals for name in (item.chip, item.engine))


def likely(case: Case, known: Counter[str], most: int = 2) -> str:
    """The first few reasons that apply, most telling first."""
    found = [reason for rule in RULES for reason in rule(case, known)]
    return "; ".join(found[:most]) or "nothing unusual about it: mostly matrix products"


def _notes(case: Case, known: Counter[str]) -> Iterator[str]:  # noqa: ARG001
    if case.row["x_flag"]:
        yield "flagged in the table"
    if case.row["x_launch_blocking"] in ("1", "1.0", "true"):
        yield "every launch was waited for, which is not modelled"
    for note in case.assumptions:
        if re.match(r"recompute\b", note):
            yield "recompute was assumed"
        elif note.startswith("lora"):
            yield "adapter sizes were assumed"
    if case.row["arch"] == "hybrid":
        yield "hybrid model: few such runs in the fit"


def _rare(case: Case, known: Counter[str]) -> Iterator[str]:
    for name in (case.chip, case.engine):
        if known[name] < FEW:
            yield f"{name} has {'no' if not known[name] else 'few'} measured runs in the fit"


def _shares(case: Case, known: Counter[str]) -> Iterator[str]:  # noqa: ARG001
    whole = sum(case.parts.values()) or 1.0
    shares = {name: case.parts.get(name, 0.0) / whole for name in SUSPECTS}
    over = [name for name, share in shares.items() if share >= SUSPECTS[name][0]]
    for name in sorted(over, key=lambda name: -shares[name] / SUSPECTS[name][0]):
        yield f"{SUSPECTS[name][1]} {shares[name]:.0%} of the prediction"


def _trust(case: Case, known: Counter[str]) -> Iterator[str]:  # noqa: ARG001
    if case.row["x_trust"] == "C":
        yield "read from a chart"
    if case.row["x_trust"] == "B-":
        yield "the plan was joined from a script"


RULES: Sequence[Callable[[Case, Counter[str]], Iterator[str]]] = (_notes, _rare, _shares, _trust)
