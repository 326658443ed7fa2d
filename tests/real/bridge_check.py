"""Run exported recipes through Megatron-Bridge and print what became of each, as JSON: see test_target_bridge.py."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from stubs import Stubs
from target_cases import CASES, made

import ridgeline
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import export
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.dialects.megatron_bridge.write import RECIPES


def bridge() -> types.ModuleType:
    """Megatron-Bridge's configuration, told that it runs on H100s."""
    if not hasattr(typing, "override"):  # Python 3.11: it asks for 3.12
        setattr(typing, "override", lambda func: func)  # noqa: B010
    Stubs("transformer_engine", "megatron.energon", "modelopt").install()
    import torch
    import transformer_engine.pytorch.optimizers as optimizers

    def adam(*, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any) -> None:
        """What a check of the fused optimizer's signature sees."""

    optimizers.FusedAdam = adam
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100")
    import megatron.bridge.training.config as config

    os.environ["PRETRAINED"] = os.path.dirname(__file__)  # weights that adapters stand beside have to exist
    return typing.cast(types.ModuleType, config)


def differences(scenario: Scenario, cfg: Any, lost: set[str]) -> Iterator[str]:
    """Decisions that were expressed and are not what the prepared configuration holds."""
    model, ddp, wanted = cfg.model, cfg.ddp, decisions_of(scenario)
    shard = wanted["plan.shard"]
    held: Mapping[str, tuple[Any, Any]] = {
        "plan.dp": (cfg.data_parallel_size, scenario.plan.mesh.dp),
        "plan.tp": (model.tensor_model_parallel_size, wanted["plan.tp"]),
        "plan.pp": (model.pipeline_model_parallel_size, wanted["plan.pp"]),
        "plan.cp": (model.context_parallel_size, wanted["plan.cp"]),
        "plan.ep": (model.expert_model_parallel_size, wanted["plan.ep"]),
        "plan.microbatch": (cfg.train.micro_batch_size, wanted["plan.microbatch"]),
        "plan.schedule.chunks": (model.virtual_pipeline_model_parallel_size or 1, wanted.get("plan.schedule.chunks")),
        "plan.shard": ((ddp.use_distributed_optimizer, ddp.use_megatron_fsdp), (shard != "none", shard > "zero1")),
        "plan.precision.gradients": (ddp.grad_reduce_in_fp32, wanted["plan.precision.gradients"] == "fp32"),
        "plan.precision.activations": (model.bf16, wanted["plan.precision.activations"] == "bf16"),
        "plan.sequence_parallel": (model.sequence_parallel, wanted.get("plan.sequence_parallel")),
        "plan.overlap.grad-reduce": (ddp.overlap_grad_reduce, wanted.get("plan.overlap.grad-reduce")),
        "plan.overlap.param-gather": (ddp.overlap_param_gather, wanted.get("plan.overlap.param-gather")),
        "plan.overlap.tp": (model.tp_comm_overlap, wanted.get("plan.overlap.tp")),
        "plan.overlap.pp": (model.overlap_p2p_comm, wanted.get("plan.overlap.pp")),
        "plan.overlap.moe": (model.overlap_moe_expert_parallel_comm, wanted.get("plan.overlap.moe")),
    }
    for path, (got, expected) in held.items():
        if path in wanted and path not in lost and got != expected:
            yield f"{path}: {got} instead of {expected}"


def outcome(scenario: Scenario, config: types.ModuleType) -> str:
    """ "ok", or what is wrong with the recipe of a scenario."""
    written = export(scenario, to="megatron-bridge")
    setattr(config, "get_world_size_safe", lambda: scenario.system.chips)  # noqa: B010
    scope: dict[str, Any] = {"__name__": "recipe"}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(written.files["recipe.py"], "recipe.py", "exec"), scope)
            cfg = scope["recipe"]()
            config.runtime_config_update(cfg)
    except Exception as wrong:
        return f"{type(wrong).__name__}: {str(wrong)[:300]}"
    return "; ".join(differences(scenario, cfg, {part.path for part in written.lost})) or "ok"


def named_formats() -> Iterator[tuple[str, str]]:
    """The named precisions that the reader knows, against the functions of that name."""
    import megatron.bridge.training.mixed_precision as precision

    fields = {"fp8-format": "fp8", "fp8-recipe": "fp8_recipe", "fp8-param-gather": "fp8_param_gather"}
    fields |= {"fp4-format": "fp4", "fp4-recipe": "fp4_recipe", "bf16": "bf16", "fp16": "fp16"}
    for name, sets in RECIPES.items():
        real = getattr(precision, name)()
        wrong = [word for word, value in sets.items() if getattr(real, fields[word]) != value]
        unsaid = real.fp8_param_gather and "fp8-param-gather" not in sets
        yield name, "ok" if not wrong and not unsaid else f"{wrong} {'fp8_param_gather' if unsaid else ''} differ"


def main() -> int:
    config = bridge()
    outcomes = dict(named_formats())
    for model, chip, plan, work in CASES:
        scenario = made(model, chip, {**plan, "engine": "megatron-bridge"}, work)
        outcomes[f"{model} {chip} {plan} {work}"] = outcome(scenario, config)
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    assert ridgeline
    sys.exit(main())
