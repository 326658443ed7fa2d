"""The cases of benchmarks/run_h200.py as scenarios; `python -m tools figures run` predicts them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ridgeline

OWN = ridgeline.engine("ridgeline").fuses
MODELS: dict[str, tuple[Any, int, int]] = {  # id: model, tokens of a sequence, sequences
    "1b": ({"base": "llama3.2-1b", "tied": False}, 2048, 4),
    "3b": ("llama3.2-3b", 8192, 1),
    "8b": ("llama3-8b", 8192, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a model, what of the engine's fusions is left out or added, and settings of the plan."""

    model: str
    name: str
    less: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.model} {self.name}"

    @property
    def scenario(self) -> ridgeline.Scenario:
        model, seq, sequences = MODELS[self.model]
        fuses = [word for word in OWN if word not in self.less] + list(self.more)
        return ridgeline.scenario(
            {
                "model": model,
                "system": "1xh200-sxm",
                "workload": {
                    "seq": seq, "global_batch": sequences,
                    "optimizer": {"name": "adamw", "states": "bf16", "master": "none"},
                },
                "engine": {"base": "ridgeline", "fuses": fuses},
                "plan": {"microbatch": sequences, "precision": "bf16", **self.plan},
            }
        )  # fmt: skip


EAGER = {"compiled": False}
LOSS = ("cross-entropy",)
AGAIN = {"kind": "selective", "parts": ["activation"]}
CASES = (
    Case(model="8b", name="compiled"),
    Case(model="8b", name="compiled, loss in chunks", less=LOSS, more=("linear-cross-entropy",)),
    Case(model="8b", name="compiled, loss op by op", less=LOSS),
    Case(model="8b", name="compiled, AdamW op by op", less=("optimizer",)),
    Case(model="8b", name="compiled, CUDA graph", plan={"graph": "full"}),
    Case(model="8b", name="compiled, fp8 by tensor", plan={"precision": "fp8"}),
    Case(model="8b", name="compiled, fp8 by row", plan={"precision": {"name": "fp8", "scaling": "row"}}),
    Case(model="8b", name="compiled, fp8 by tensor, CUDA graph", plan={"precision": "fp8", "graph": "full"}),
    Case(model="8b", name="eager", plan=EAGER),
    Case(model="8b", name="eager, norms op by op", less=("norm",), plan={**EAGER, "recompute": "full"}),
    Case(model="8b", name="eager, full recompute", plan={**EAGER, "recompute": "full"}),
    Case(model="8b", name="eager, rotary op by op", less=("rotary",), plan=EAGER),
    Case(model="8b", name="eager, activation op by op", less=("bias-activation",), plan=EAGER),
    Case(model="8b", name="eager, loss op by op", less=LOSS, plan=EAGER),
    Case(model="1b", name="compiled"),
    Case(model="1b", name="eager", plan=EAGER),
    Case(model="1b", name="compiled, CUDA graph", plan={"graph": "full"}),
    Case(model="1b", name="eager, CUDA graph", plan={**EAGER, "graph": "full"}),
    Case(model="1b", name="compiled, fp8 by tensor", plan={"precision": "fp8"}),
    Case(model="3b", name="compiled"),
    Case(model="3b", name="eager", plan=EAGER),
    Case(model="3b", name="compiled, activations offloaded", plan={"offload": "activations"}),
    Case(model="3b", name="compiled, half of activations offloaded", plan={"offload": {"activations": 0.5}}),
    Case(model="3b", name="compiled, optimizer offloaded", plan={"offload": "optimizer"}),
    Case(model="3b", name="compiled, activation recomputed", plan={"recompute": AGAIN}),
)  # fmt: skip
