"""Which options of serving engines change what is simulated although nothing here reads them, and in what way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from ridgeline.targets.target import Unread

SCHEDULES = "scheduling that is not simulated"
CACHES = "a KV cache that is not simulated"
COSTS = "work that is not priced"
MATTERS: Mapping[str, str] = MappingProxyType(
    {
        # vLLM
        "prefill-schedule-interval": SCHEDULES, "max-num-scheduled-tokens": SCHEDULES, "max-num-active-seqs": SCHEDULES,
        "max-num-queued-*": SCHEDULES, "scheduler-cls": SCHEDULES, "long-prefill-token-threshold-adaptive": SCHEDULES,
        "performance-mode": SCHEDULES, "dp-sync-interval": SCHEDULES, "stream-interval": SCHEDULES,
        "max-num-partial-prefills": SCHEDULES, "max-long-partial-prefills": SCHEDULES, "num-scheduler-steps": SCHEDULES,
        "scheduler-delay-factor": SCHEDULES, "num-lookahead-slots": SCHEDULES, "preemption-mode": SCHEDULES,
        "prefix-match-unit": CACHES, "prefix-cache-retention-interval": CACHES, "kv-transfer-config": CACHES,
        "kv-offloading-*": CACHES, "kv-cache-memory-bytes": CACHES, "kv-cache-dtype-skip-layers": CACHES,
        "swap-space": CACHES, "enable-dbo": COSTS, "ubatch-size": COSTS, "enable-eplb": COSTS, "enable-lora": COSTS,
        "cpu-offload-gb": COSTS, "offload-*": COSTS, "*context-parallel-size": COSTS,
        # SGLang
        "enable-mixed-chunk": SCHEDULES, "prefill-decode-interval*": SCHEDULES, "*prefill-delayer*": SCHEDULES,
        "prefill-max-requests": SCHEDULES, "num-continuous-decode-steps": SCHEDULES,
        "enable-dynamic-chunking": SCHEDULES, "scheduler-recv-interval": SCHEDULES, "retraction-policy": SCHEDULES,
        "max-queued-requests": SCHEDULES,
        "schedule-low-priority-values-first": SCHEDULES, "num-reserved-decode-tokens": SCHEDULES,
        "pp-max-micro-batch-size": SCHEDULES, "pp-async-batch-depth": SCHEDULES, "disaggregation-mode": SCHEDULES,
        "radix-eviction-policy": CACHES, "enable-hierarchical-cache": CACHES, "enable-hicache": CACHES,
        "enable-lmcache": CACHES, "swa-full-tokens-ratio": CACHES, "*mamba-cache-size": CACHES, "dcp-size": COSTS,
        "attn-cp-size": COSTS, "enable-two-batch-overlap": COSTS, "enable-single-batch-overlap": COSTS,
        "enable-torch-compile": COSTS, "moe-dense-tp-size": COSTS,
    }
)  # fmt: skip
"""Names or patterns of options, without their dashes -> what they change."""
QUIET = ("false", "none", "null", "'none'", "'null'", "0")


def weighed(unread: Iterable[Unread]) -> Iterator[Unread]:
    """What was not read, with what it changes where it changes something and is not switched off.

    >>> told = weighed(Unread(option=name, value="4", why="") for name in ("--stream-interval", "seed"))
    >>> [(part.option, part.matters) for part in told]
    [('--stream-interval', True), ('seed', False)]
    """
    for part in unread:
        name = part.option.lstrip("-").replace("_", "-")
        why = next((why for pattern, why in MATTERS.items() if fnmatchcase(name, pattern)), "")
        off = str(part.value).lower() in QUIET
        if not why or off:
            yield part
        else:  # one that this version does not have keeps the names nearest to it
            yield replace(part, why=part.why if part.why.startswith("no option") else why, matters=True)
