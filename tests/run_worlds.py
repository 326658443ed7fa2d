"""Processes that run a list of plans in one launch, for tests of `ridgeline.runtime.train`.

A test names models and plans; the ranks verify them one after the other, and rank 0 answers. A process group is opened
once, so that thirty plans cost little more than one.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

Case = tuple[str, dict[str, Any]]
DENSE: dict[str, Any] = {
    "hidden": 64,
    "layers": 2,
    "vocab": 256,
    "attention": {"heads": 4, "kv_heads": 2},
    "mlp": {"hidden": 96},
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "deep": {**DENSE, "layers": 4},
    "mtp": {**DENSE, "mtp": 1},
    "mtp-tied": {**DENSE, "tied": True, "mtp": 2},
    "window": {**DENSE, "tied": True, "attention": {"heads": 4, "window": 9, "qkv_bias": True, "out_bias": True}},
    "gpt": {
        **DENSE, "norm": "layer", "positions": 64, "attention": {"heads": 4, "positions": "learned", "qkv_bias": True},
        "mlp": {"hidden": 96, "gated": False, "activation": "gelu", "bias": True},
    },
    "moe": {
        **DENSE, "tied": True, "attention": {"heads": 4, "kv_heads": 2, "qk_norm": "head"},
        "moe": {"experts": 8, "topk": 2, "hidden": 32, "shared_hidden": 32, "shared_gate": True},
    },
    "mla": {
        "hidden": 64, "layers": 2, "vocab": 256, "first_dense": 1, "mlp": {"hidden": 96},
        "attention": {
            "kind": "mla", "heads": 4, "q_rank": 32, "kv_rank": 32, "nope_dim": 16, "rope_dim": 8, "v_dim": 16,
        },
        "moe": {"experts": 8, "topk": 2, "hidden": 32, "shared_hidden": 32, "groups": 4, "group_topk": 2},
    },
}  # fmt: skip
MODELS["mla-mtp"] = {**MODELS["mla"], "mtp": 1}


def verified(ranks: int, cases: Sequence[Case], sabotage: str = "") -> list[dict[str, Any]]:
    """What `verify` says of each case: equal, the loss's difference, the worst parameter, those that diverged."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here, there = context.Pipe()
    made = [
        context.Process(target=_rank, args=(rank, ranks, port, list(cases), sabotage, there), daemon=True)
        for rank in range(ranks)
    ]
    for process in made:
        process.start()
    answers = []
    try:
        for case in cases:
            assert here.poll(120), f"no answer for {case}"
            answers.append(here.recv())
            assert "failed" not in answers[-1], f"{case}: {answers[-1]['failed']}"
    finally:
        for process in made:
            process.join(10 if len(answers) == len(cases) else 0)
            process.kill()
    return answers


def _rank(rank: int, ranks: int, port: int, cases: list[Case], sabotage: str, pipe: Any) -> None:
    own = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in own.items()})
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    import logging

    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    if sabotage:
        _break(sabotage)
    for case in cases:
        try:
            found = _verified(*case)
        except Exception as wrong:
            import traceback

            traceback.print_exc(file=sys.stderr)
            if rank == 0:
                pipe.send({"failed": f"{type(wrong).__name__}: {wrong}"})
            break
        if rank == 0:
            pipe.send(found)
    dist.destroy_process_group()


def blueprint_and_layout(name: str, table: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What is trained, where this rank stands, and the model; `fuses` in the table adds words to norms."""
    from ridgeline.core.dtype import dtype
    from ridgeline.core.table import decode
    from ridgeline.models.load import model
    from ridgeline.plan.engine import engine
    from ridgeline.plan.plan import Plan
    from ridgeline.plan.scenario import default_placement
    from ridgeline.runtime.train.assemble import Blueprint
    from ridgeline.runtime.train.layout import make_layout
    from ridgeline.runtime.train.request import forward_constants

    given = {"precision": "fp32", "engine": "ridgeline", **table}
    fuses = frozenset(given.pop("fuses", engine("ridgeline").fuses))
    spec, plan = model(MODELS[name]), decode(Plan, given)
    placement = plan.placement or default_placement(spec, plan.virtual_stages)
    blueprint = Blueprint(
        model=spec,
        constants=forward_constants(spec),
        plan=plan,
        placement=placement,
        gradients=dtype("fp32"),
        fuses=fuses,
    )
    return blueprint, make_layout(plan, experts="moe" in MODELS[name]), spec


def _verified(name: str, table: dict[str, Any]) -> dict[str, Any] | None:
    from ridgeline.runtime.train.data import open_source
    from ridgeline.runtime.train.verify import verify

    sequences = table.get("sequences", 4)
    blueprint, layout, spec = blueprint_and_layout(name, {key: of for key, of in table.items() if key != "sequences"})
    found = verify(blueprint, layout, open_source("synthetic", spec.vocab, 0), sequences, 32)
    if found is None:
        return None
    return {
        "equal": found.equal,
        "loss": found.loss_difference,
        "worst": (found.worst.name, found.worst.difference, found.worst.tolerance),
        "diverged": [one.name for one in found.diverged],
        "parameters": len(found.parameters),
    }


def _break(what: str) -> None:
    """Make a mistake that frameworks make: forget that a gradient is a summand; average what should be summed."""
    from ridgeline.runtime.train import layout, stage, weights

    if what == "norm":
        made = weights.Norm.__init__

        def forgetful(self: Any, *given: Any, **told: Any) -> None:
            made(self, *given, **told)
            self.summand = False

        weights.Norm.__init__ = forgetful
    elif what == "embedding":
        stage.leave = lambda x, where: layout.scatter(x, where.tp, 1) / 2
