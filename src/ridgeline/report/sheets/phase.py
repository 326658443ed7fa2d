"""The sheet of `ridgeline predict --json` for a prefill or a decode step."""

from __future__ import annotations

from typing import Literal, TypedDict

from ridgeline.report.sheets.predict import IntervalSheet, StepPartSheet


class PhaseTitleSheet(TypedDict):
    """What is predicted.

    phase     prefill or decode
    seq       prompt tokens of a sequence, or tokens it has in the cache
    weights, kv   number formats of weights and cache; `precision` that of products
    mesh      degrees above 1, by axis; dp ranks run attention of their own requests and share experts
    """

    name: str
    phase: str
    model: str
    system: str
    chips: int
    seq: int
    sequences: int
    mesh: dict[str, int]
    precision: str
    weights: str
    kv: str
    engine: str


class ServingMemorySheet(TypedDict):
    """Bytes of the fullest chip, and what its cache holds.

    cache_bytes          what the KV cache may take; negative where the model itself does not fit
    kv_bytes_per_token   of one cached token on that chip
    state_bytes          of a request, whatever its length
    tokens               cached tokens of one scheduler, in `blocks` of `block_size`
    """

    capacity_bytes: float
    weights_bytes: float
    activations_bytes: float
    graphs_bytes: float
    runtime_bytes: float
    cache_bytes: float
    kv_bytes_per_token: float
    state_bytes: float
    tokens: int
    blocks: int
    block_size: int


class CurvePointSheet(TypedDict):
    """A batch of the curve: requests of the whole system at once."""

    batch: int
    step_time_s: float
    tokens_per_s_per_user: float
    tokens_per_s_per_chip: float
    cost_per_million_tokens_usd: float | None


class PhaseSheet(TypedDict):
    """A prefill or a decode step: how long, where the time goes, does it fit, what a token costs.

    step_time_s    the whole prefill, or one decode step
    steps          engine steps in it
    breakdown      seconds by part; they sum to `step_time_s`
    bounds         the same seconds by what limits them
    cached_tokens  tokens of the workload that one scheduler must hold
    curve          decode: other batches at the same context
    """

    kind: Literal["phase"]
    possible: Literal[True]
    scenario: PhaseTitleSheet
    step_time_s: float
    steps: int
    tokens: float
    tokens_per_s: float
    tokens_per_s_per_user: float
    tokens_per_s_per_chip: float
    cost_per_million_tokens_usd: float | None
    energy_j: float | None
    breakdown: dict[str, float]
    parts: dict[str, StepPartSheet]
    bounds: dict[str, float]
    memory: ServingMemorySheet
    cached_tokens: int
    fits: bool
    curve: list[CurvePointSheet]
    interval: IntervalSheet
    evidence: str
    assumptions: list[str]
