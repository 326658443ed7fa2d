"""Turn a serve scenario into plans that differ from it in one thing: a knob, the router, the split, the chips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ridgeline.core.errors import InputError
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.scenario import Scenario
from ridgeline.serving.deployment import instances_of, knobs_of
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.tensorrt_llm_settings import TensorrtLlmSettings
from ridgeline.serving.vllm_settings import VllmSettings

FEWEST_TOKENS = 256  # of a step

Change = tuple[str, Scenario]
"""A change as `--set` writes it, and the scenario with it."""


def changes(scenario: Scenario) -> Iterator[Change]:
    """Plans worth trying when requests are slow."""
    yield from _knobs(scenario)
    yield from _routers(scenario)
    yield from _shapes(scenario)


def _knobs(scenario: Scenario) -> Iterator[Change]:
    """Seats, token budget, chunk and memory, up and down, by the engine's own names."""
    settings = instances_of(scenario)[0].settings
    tried: tuple[tuple[str, Any], ...] = ()
    engine = "vllm"
    if isinstance(settings, VllmSettings):
        tokens, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
        tried = (
            ("max_num_seqs", seqs * 2),
            ("max_num_seqs", max(seqs // 2, 1)),
            ("max_num_batched_tokens", tokens * 2),
            ("max_num_batched_tokens", max(tokens // 4, FEWEST_TOKENS)),
            ("long_prefill_token_threshold", max(tokens // 4, FEWEST_TOKENS)),
            ("gpu_memory_utilization", 0.95),
            ("enable_prefix_caching", True),
        )
    elif isinstance(settings, SglangSettings):
        engine = "sglang"
        chunk = settings.chunked_prefill_size or settings.max_prefill_tokens
        tried = (
            ("chunked_prefill_size", chunk * 2),
            ("chunked_prefill_size", max(chunk // 4, FEWEST_TOKENS)),
            ("mem_fraction_static", 0.93),
            ("schedule_conservativeness", 0.3),
        )
    elif isinstance(settings, TensorrtLlmSettings):
        engine = "tensorrt_llm"
        tried = (
            ("max_num_tokens", settings.max_num_tokens * 2),
            ("max_num_tokens", max(settings.max_num_tokens // 4, FEWEST_TOKENS)),
            ("max_batch_size", max(settings.max_batch_size // 2, 1)),
            ("enable_chunked_prefill", True),
            ("capacity_scheduler_policy", "MAX_UTILIZATION"),
            ("free_gpu_memory_fraction", 0.95),
        )
    knobs: Any = knobs_of(scenario)
    for name, value in tried:
        if getattr(knobs, name) != value:
            written = str(value).lower() if isinstance(value, bool) else str(value)
            other = replace(knobs, **{name: value})
            yield f"plan.serving.{engine}.{name}={written}", _serving(scenario, knobs=other)


def _routers(scenario: Scenario) -> Iterator[Change]:
    for router in ("least-loaded", "prefix-aware"):
        several = sum(one.count for one in instances_of(scenario)) > 1
        if several and scenario.plan.serving.router != router:
            yield f"plan.serving.router={router}", _serving(scenario, router=router)


def _shapes(scenario: Scenario) -> Iterator[Change]:
    """Other splits of the chips that there are, and twice as many chips."""
    serving, mesh, system = scenario.plan.serving, scenario.plan.mesh, scenario.system
    if serving.pools or serving.autoscale:
        return
    plan = replace(scenario.plan, serving=replace(serving, replicas=None))
    ranks = mesh.dp * mesh.tp
    for tp in (mesh.tp * 2, mesh.tp // 2):
        if tp and ranks % tp == 0 and ranks // tp >= serving.data_parallel_size:
            yield f"plan.tp={tp}", replace(scenario, plan=replace(plan, mesh=replace(mesh, tp=tp, dp=ranks // tp)))
    try:
        twice = load_system(f"{system.chips * 2}x{system.name.partition('x')[2]}")
    except InputError:
        return
    more = replace(plan, mesh=replace(mesh, dp=mesh.dp * 2))
    yield f"system={twice.name}", replace(scenario, system=twice, plan=more)


def _serving(scenario: Scenario, **changed: Any) -> Scenario:
    plan = scenario.plan
    return replace(scenario, plan=replace(plan, serving=replace(plan.serving, **changed)))
