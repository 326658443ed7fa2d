"""Turn the recompute of a plan and the one that is written for it into what is said of the difference."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.export.ledger import Lose
from ridgeline.plan.plan import Recompute

KEYS = ("kind", "parts", "layers", "rest", "blocks")


def changed(own: Recompute, written: Recompute, why: str) -> Iterator[Lose]:
    """A loss for every key in which the two differ; `why` says what keeps the target from the plan's own.

    >>> list(changed(Recompute(kind="full", layers=(2, 0)), Recompute(kind="full"), "one way for all layers"))
    [Lose(path='plan.recompute.layers', why='one way for all layers: written as full, which covers it')]
    """
    for key in KEYS:
        if getattr(own, key) != getattr(written, key) or (key == "parts" and own.kind != written.kind):
            yield Lose(f"plan.recompute.{key}", f"{why}: written as {written}, which covers it")
