"""What judging one result says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was seen of one output: a statistic, what it measured and its limit; right where it stays below."""

    right: bool
    statistic: str = ""
    measured: float = 0.0
    limit: float = 0.0


RIGHT = Verdict(right=True)


def wrong(statistic: str, measured: float, limit: float = 0.5) -> Verdict:
    """A broken contract; what is counted breaks it from one on."""
    return Verdict(right=False, statistic=statistic, measured=measured, limit=limit)


def worse(one: Verdict, other: Verdict) -> Verdict:
    """The one that is further over its limit."""
    if other.right or one.right:
        return one if other.right else other
    return one if one.measured / one.limit >= other.measured / other.limit else other
