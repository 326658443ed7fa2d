"""Turn Megatron's words about a run that generates text into the step that decodes: one token for each sequence.

Prompts and answers come from elsewhere, so the cache is taken as full: as many tokens as the run allows a sequence,
for as many sequences as it takes at a time. What training would need beside the weights is left out.
"""

from __future__ import annotations

from typing import Any

from ridgeline.targets.option_reader import OptionReader

LONGEST = ("inference-max-seq-length", "inference-max-sequence-length", "max-length", "seq-length")
MOST = (
    "inference-dynamic-batching-max-requests",
    "inference-max-requests",
    "inference-max-batch-size",
    "max-batch-size",
    "micro-batch-size",
)
WRITTEN = ("num-tokens-to-generate", "tokens-to-generate", "max-new-tokens", "out-seq-length")
KEPT = ("tp", "pp", "ep", "etp", "engine", "attention", "moe_dispatch", "sequence_parallel")
FORMATS = ("compute", "weights", "activations", "kv", "scaling")


def decoding(reader: OptionReader) -> tuple[dict[str, Any], int]:
    """The [workload] table of a decode step at the longest context, and the sequences of each data-parallel replica."""
    context = reader.count(*LONGEST) or 2048
    batch = reader.count(*MOST, default=1) or 1
    for name in (*LONGEST, *MOST, *WRITTEN, "global-batch-size"):
        reader.take(name)
    reader.assumptions.append(
        f"a run that generates text: the decode step of {batch} sequences that each hold {context} tokens"
    )
    return {"kind": "decode", "context": context}, batch


def decoding_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """What of a plan a decode step has: no sharding, no recompute, no gradients, no pipeline schedule of training."""
    kept = {key: value for key, value in plan.items() if key in KEPT}
    formats = plan.get("precision", {})
    return kept | {"precision": {key: formats[key] for key in FORMATS if key in formats}}
