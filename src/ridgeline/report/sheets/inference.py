"""What `ridgeline analyze --json` says of the steps of an inference engine; times in microseconds, as traces count."""

from __future__ import annotations

from typing import TypedDict


class EngineStepSheet(TypedDict):
    """One step of an engine.

    step_kind   prefill, decode, mixed or idle
    wall_us     first start to last end of its work on the chip
    graph       most of it was the replay of a captured graph
    """

    rank: int
    step_kind: str
    requests: int
    tokens: int
    start_us: float
    wall_us: float
    busy_us: float
    spans: int
    graph: bool
    span_id: int


class InferenceSheet(TypedDict):
    """The steps of an inference engine, as its annotations name them.

    tpot_us        median between the ends of steps that decode; null for less than two
    prefill_us     median from the call of a step with prompts to the end of its work: TTFT without queueing
    graph_hits     steps that replayed a graph
    """

    steps: list[EngineStepSheet]
    prefill_steps: int
    decode_steps: int
    mixed_steps: int
    graph_hits: int
    mean_decode_batch: float | None
    tpot_us: float | None
    prefill_us: float | None
    tokens_per_s: float | None
