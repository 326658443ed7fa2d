"""What an architecture search answers: models of equal predicted quality, and how flat the optimum is."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.core.records import NotebookValue, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model shape at the quality asked for.

    shape         layers, hidden, ffn, heads, kv_heads, experts, topk, vocab, ...: what differs between candidates
    loss          predicted by the law, nats a token; loss_low, loss_high its 90 % interval
    train_*       of the whole run: tokens, days on the training system, dollars
    tpot_s, usd_per_million_tokens, memory_bytes   of serving, where the study says how it is served
    quality_notes what the law does not know of this shape (attention kind, precision): measured, or unknown
    """

    name: str
    shape: Mapping[str, float]
    params: float
    active_params: float
    tokens: float
    loss: float
    loss_low: float
    loss_high: float
    train_step_s: float
    train_days: float
    train_usd: float
    tpot_s: float | None
    usd_per_million_tokens: float | None
    memory_bytes: float
    total_usd: float
    on_frontier: bool
    in_basin: bool
    quality_notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Basin:
    """How flat the optimum is: the range of every choice among candidates nearly as good for the same dollars.

    tolerance    nats by which the loss of one may be above the best's at the best's dollars
    candidates   so many are
    """

    tolerance: float
    candidates: int
    ranges: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedShape:
    """A candidate that was not ranked, and why: outside the law's support, not divisible, does not fit."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureAnswer(NotebookValue):
    """Models of equal predicted loss: the frontier of training time, serving cost and memory, and the flat basin.

    law       id, form, source and support of the law that ranks; no loss is compared across laws
    best      least dollars over training and expected serving
    """

    study: str
    law: Mapping[str, str]
    target_loss: float
    loss_interval: tuple[float, float]
    best: Architecture | None
    candidates: tuple[Architecture, ...]
    basin: Basin
    refusals: tuple[RefusedShape, ...]
    notes: tuple[str, ...] = ()

    JSON = """
        kind='architectures' study law target_loss loss_interval best basin candidates refusals notes
    """
