"""Turn a Primus experiment with Megatron-Bridge inside into Megatron's words.

Such an experiment names a recipe of Megatron-Bridge, which does not stand in Primus's checkout, and gives it arguments.
What every recipe takes (degrees, batch, length) has to be among them: a degree that only the recipe would tell is not
guessed. What the recipes have in common (the distributed optimizer, its overlap, sums of gradients in fp32) is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.names import MODELS, find_name
from ridgeline.targets.megatron_bridge.names import FIELDS, RECIPES

OPTIONS = {field.rpartition(".")[2]: option for option, field in FIELDS.items() if not field.startswith("comm_overlap")}
STATED = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
)
COMMON: Mapping[str, Any] = {
    "use_distributed_optimizer": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "expert_tensor_parallel_size": 1,
}
ATTENTION = ("linear_qkv", "linear_proj")  # what adapters of its recipes for models with experts stand beside
RANK = 8  # of the adapters of its recipes
RECOMPUTED = ("qwen3-32b",)  # models whose recipes recompute all layers unless they are told otherwise


def bridge_words(said: Mapping[str, Any], named: str | None, source: str) -> dict[str, Any]:
    """Options in Megatron's words, the model under its catalog name among them."""
    recipe = str(said.get("recipe", ""))
    if recipe.startswith("primus."):
        given = f"the recipe {recipe.rpartition('.')[2][:60]}, which decides more than its arguments"
        raise InputError(Problem(path="recipe", given=given, expected="a recipe of Megatron-Bridge", where=source))
    model = named or _model(said, source)
    needed = (*STATED, *(("expert_model_parallel_size",) if _has_experts(model) else ()))
    open_ = [
        Problem(path=key, given="nothing", expected="a value beside the recipe's name, which is not here", where=source)
        for key in needed
        if type(said.get(key)) is not int
    ]
    if open_:
        raise InputError(open_)
    full = {} if "recompute_granularity" in said or model not in RECOMPUTED else {"recompute-granularity": "full"}
    return {"model": model, **full, **dict(_options(said, source))}


def unstated(said: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    """What only the recipe would tell, and how it was read."""
    if "use_distributed_optimizer" not in said and said.get("use_megatron_fsdp") is not True:
        yield "shard = zero1: as in most recipes of Megatron-Bridge, of which this one is not here"
    if "recompute_granularity" not in said:
        kind = options.get("recompute-granularity", "none")
        yield f"recompute = {kind}: as in recipes of Megatron-Bridge for this model, of which this one is not here"


def _model(said: Mapping[str, Any], source: str) -> str:
    """The catalog's name of the published model that a recipe starts from."""
    path = str(said.get("hf_path") or "")
    flavor = str(said.get("flavor") or "").replace("_", "-")
    for name in (path, flavor.partition("-pretrain")[0].partition("-finetune")[0]):
        found = find_name(name) if name else None
        if found is not None:
            return found[0]
    given, todo = (path or flavor or "nothing")[:80], "name the model with --model"
    raise InputError(Problem(path="hf_path", given=given, expected="a known model", todo=todo, where=source))


def _has_experts(model: str) -> bool:
    return model in MODELS and any(getattr(block.ffn, "experts", 0) for block in MODELS[model].blocks)


def _options(said: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    for key, value in {**COMMON, **said}.items():
        if value not in (None, False) and key in (*OPTIONS, *COMMON):
            yield OPTIONS.get(key, key.replace("_", "-")), value
    name = str(said.get("precision_config") or "bf16_mixed")
    if name not in RECIPES:
        expected = f"one of {', '.join(RECIPES)}"
        raise InputError(Problem(path="precision_config", given=name[:60], expected=expected, where=source))
    yield from RECIPES[name].items()
    yield "accumulate-allreduce-grads-in-fp32", True
    if said.get("use_megatron_fsdp") is True:
        yield "data-parallel-sharding-strategy", "optim_grads_params"
    if said.get("stage") == "sft":
        yield "sft", True


def adapters(said: Mapping[str, Any], beside: Any, experts: bool) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Adapters as Primus's own table would say them, and what was assumed of them."""
    peft = str(said.get("peft") or "none").lower()
    if peft in ("none", "null"):
        return {}, ()
    own: Mapping[str, Any] = beside if isinstance(beside, Mapping) else {}
    rank, modules = own.get("dim", said.get("peft_dim")), own.get("target_modules")
    notes = () if type(rank) is int else (f"lora: rank {RANK}, as in recipes of Megatron-Bridge",)
    if peft != "lora":
        notes = (*notes, f"peft = {peft[:40]}: priced as LoRA")
    found: dict[str, Any] = {"enabled": True, "dim": rank if type(rank) is int else RANK}
    if isinstance(modules, list) or experts:
        found["target_modules"] = modules if isinstance(modules, list) else list(ATTENTION)
    return found, notes
