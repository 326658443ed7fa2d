"""What `ridgeline explain SCENARIO RESULT... --json` prints."""

from __future__ import annotations

from typing import Literal, TypedDict


class BenchLoadSheet(TypedDict):
    """One load: medians over its repeats of the median of requests, by metric (ttft, tpot, e2e), seconds.

    request_rate     per second; null: all at once, or as the client's limit allows
    measured_s       what the load generator measured
    cold_s           predicted without an anchor
    predicted_s      with it; the same without one
    residual         predicted / measured - 1, by metric
    causes_s         by cause, what it adds to cold; they sum to measured - cold
    spread           (largest - smallest) / median of the repeats, by metric
    """

    request_rate: float | None
    max_concurrency: int | None
    repeats: int
    requests: int
    measured_s: dict[str, float]
    cold_s: dict[str, float]
    predicted_s: dict[str, float]
    residual: dict[str, float]
    causes_s: dict[str, dict[str, float]]
    spread: dict[str, float]


class BenchExplanationSheet(TypedDict):
    """`explain SCENARIO RESULT...`: a serve scenario beside what a load generator measured of it.

    anchor        the run that the five numbers of a step were fitted to; empty without one
    anchor_e2e    mean |residual| of E2E over that run's requests; null without one
    step_s        the five numbers, seconds: step, decode, kv_token, prefill_token, attention_pair; empty without it
    """

    kind: Literal["explain-bench"]
    scenario: str
    anchor: str
    anchor_e2e: float | None
    step_s: dict[str, float]
    loads: list[BenchLoadSheet]
    notes: list[str]
