"""Turn recordings of vLLM's scheduler into cases to replay: the object of a harness, the lines of a live engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.serving.recorded_fields import (
    MOST_BLOCKS,
    MOST_REQUESTS,
    MOST_TOKENS,
    Fields,
    flag,
    name,
    requests,
    steps,
    table,
    whole,
    wrong,
)
from ridgeline.serving.request import Piece, Request
from ridgeline.serving.vllm_replay import Record, VllmCase
from ridgeline.serving.vllm_settings import VllmSettings, vllm_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRecording:
    """Decisions of a real vLLM scheduler: what was asked, and what it did step by step."""

    version: str
    case: VllmCase
    steps: tuple[Record, ...]


def vllm_harness(document: Fields) -> VllmRecording:
    """What a harness around the real scheduler writes: everything in one object."""
    version = str(document.get("vllm", ""))
    settings = _settings(table(document["config"], "config"), version)
    asked = requests(document["requests"], settings.block_size)
    arrivals = tuple(whole(entry, "arrival_step", default=0, where="requests") for entry in document["requests"])
    case = VllmCase(settings=settings, requests=asked, arrival_steps=arrivals)
    return VllmRecording(version=version, case=case, steps=steps(document["steps"]))


def _settings(config: Fields, version: str) -> VllmSettings:
    policy: Literal["fcfs", "priority"] = "priority" if config.get("policy") == "priority" else "fcfs"
    if config.get("policy", "fcfs") != policy:
        raise wrong("config.policy", repr(config["policy"])[:60], "fcfs or priority")
    watermark = config.get("watermark", 0.0)
    if not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        raise wrong("config.watermark", repr(watermark)[:60], "a fraction from 0 up to 1")
    return VllmSettings(
        num_blocks=whole(config, "num_blocks", least=2, most=MOST_BLOCKS, where="config"),
        block_size=whole(config, "block_size", least=1, where="config"),
        max_num_seqs=whole(config, "max_num_seqs", least=1, where="config"),
        max_num_batched_tokens=whole(config, "max_num_batched_tokens", least=1, where="config"),
        max_model_len=whole(config, "max_model_len", least=2, where="config"),
        enable_prefix_caching=flag(config, "enable_prefix_caching", default=True),
        enable_chunked_prefill=flag(config, "enable_chunked_prefill", default=True),
        scheduling_policy=policy,
        long_prefill_token_threshold=whole(config, "long_prefill_token_threshold", default=0, where="config"),
        scheduler_reserve_full_isl=flag(config, "scheduler_reserve_full_isl", default=True),
        watermark=float(watermark),
        async_scheduling=whole(config, "async_depth", default=1, least=1, most=2, where="config") > 1,
        rules=vllm_rules(version),
    )


def vllm_live(lines: Sequence[Fields]) -> VllmRecording:
    """What a recording scheduler inside a live engine writes: one line per arrival and per step."""
    settings = _settings(table(lines[0]["config"], "config"), "")
    if settings.enable_prefix_caching:
        raise wrong(
            "config.enable_prefix_caching",
            "a log of a live engine with prefix caching, which does not hold the prompts",
            "prefix caching off, or a recording with the prompts (config, requests, steps)",
        )
    added = [line for line in lines[1:] if "add" in line]
    if not added or len(added) > MOST_REQUESTS:
        raise wrong("add", f"{len(added)} requests", f"1 to {MOST_REQUESTS:,}")
    asked = tuple(_live_requests(added))
    arrivals = tuple(whole(line, "step", where="add") for line in added)
    case = VllmCase(settings=settings, requests=asked, arrival_steps=arrivals)
    return VllmRecording(version="", case=case, steps=tuple(line for line in lines if "scheduled" in line))


def _live_requests(added: Sequence[Fields]) -> Iterator[Request]:
    for number, line in enumerate(added):
        tokens = whole(line, "max_tokens", least=1, where="add")
        yield Request(
            id=name(line["add"], "add"),
            arrival_s=0.0,
            prompt=(Piece(seed=number, tokens=whole(line, "prompt_len", least=1, where="add")),),
            output_tokens=tokens,
            max_new_tokens=tokens,
            priority=whole(line, "priority", default=0, least=-MOST_TOKENS, where="add"),
        )
