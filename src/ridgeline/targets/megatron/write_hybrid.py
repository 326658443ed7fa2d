"""Turn a model whose layers are single parts (Mamba, attention, mlp, experts) into a hybrid pattern of Megatron-Core.

Every part is a layer of its own there: a block of a mixer and a feed-forward part stands as two. Pipeline stages are
cut by `|` inside the pattern, layers of multi-token prediction follow a `/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from ridgeline.models.spec import (
    Attention,
    Block,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
    Recurrence,
)
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say

OPTION = "--hybrid-layer-pattern"
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
SYMBOLS: dict[type[object], str] = {Mamba2: "M", GatedDeltaNet: "G", Attention: "*", LatentAttention: "+"}
SYMBOLS |= {Mlp: "-", Moe: "E"}
MAMBA = {"heads": "--mamba-num-heads", "head_dim": "--mamba-head-dim"}
MAMBA |= {"state": "--mamba-state-dim", "groups": "--mamba-num-groups"}
LINEAR = {"key_heads": "--linear-num-key-heads", "value_heads": "--linear-num-value-heads"}
LINEAR |= {
    "key_dim": "--linear-key-head-dim",
    "value_dim": "--linear-value-head-dim",
    "conv": "--linear-conv-kernel-dim",
}
ONE = "one value holds for all layers of a kind"
PAIRED = "each part of a layer stands as a layer of its own"


def is_hybrid(model: ModelSpec) -> bool:
    """Whether layers are spelled by a pattern: some are state spaces, or single parts.

    >>> from ridgeline.models.load import MODELS
    >>> is_hybrid(MODELS["nemotron-h-8b"]), is_hybrid(MODELS["llama3-8b"]), is_hybrid(MODELS["qwen3-next-80b-a3b"])
    (True, False, False)
    """
    return any(
        isinstance(block.mixer, (Mamba2, Recurrence)) or not block.mixer or not block.ffn or _unknown(block)
        for block in model.blocks
    )


def _unknown(block: Block) -> bool:
    return block.captured is not None or block.beside is not None or isinstance(block.mixer, Recurrence)


def symbols_of(block: Block) -> str:
    """The layers that a block is there; nothing where it has no word for a part, or parts do not follow each other."""
    parts = [part for part in (block.mixer, block.ffn) if part is not None]
    alone = block.cross is None and not _unknown(block)
    plain = not block.parallel and block.norms == len(parts) and alone
    return "".join(SYMBOLS.get(type(part), "?") for part in parts) if plain else "?"


def cannot_spell(model: ModelSpec) -> str:
    """Why no pattern spells the model; empty where one does."""
    if any(_unknown(block) for block in model.blocks):
        return "it has no such layers: Mamba of the first kind, mixers side by side, or captured from other code"
    if any("?" in symbols_of(block) for block in model.blocks):
        return "a pattern spells Mamba-2, gated delta nets, attention, mlp and experts, one after the other"
    if model.mtp is not None and "?" in symbols_of(model.mtp.block):
        return "further tokens are predicted by layers that a pattern spells"
    for kind in (Mamba2, GatedDeltaNet, Attention, LatentAttention):
        if len({block.mixer for block in model.blocks if isinstance(block.mixer, kind)}) > 1:
            return "layers of one kind are equal under a pattern"
    for mixer in (block.mixer for block in model.blocks):
        if isinstance(mixer, Mamba2) and (mixer.conv, mixer.conv_bias, mixer.proj_bias) != (4, True, False):
            return "its Mamba has a convolution of 4 with a bias, and projections without"
    return ""


def pattern(scenario: Scenario, cuts: bool = True) -> str:
    """The pattern, with pipeline segments where stages are uneven or several on a rank.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "nemotron-h-8b", "system": "8xh100-sxm", "workload": {"seq": 4096,
    ...     "global_batch": 8}, "plan": {"pp": 2}})
    >>> pattern(made)[:12]
    'M-M-M-M*-M-M'
    """
    model = scenario.model
    layers = [symbols_of(model.layer(index)) for index in range(model.layers)]
    ends = [0, *accumulate(scenario.placement)] if cuts and segmented(scenario) else [0, model.layers]
    main = "|".join("".join(layers[before:after]) for before, after in pairwise(ends))
    ahead = f"/{symbols_of(model.mtp.block)}" * model.mtp.depth if model.mtp is not None else ""
    return main + ahead


def segmented(scenario: Scenario) -> bool:
    """Whether stages have to be spelled: virtual ones, uneven ones, and of blocks that are two layers there."""
    paired = any(len(symbols_of(block)) > 1 for block in scenario.model.blocks)
    return scenario.plan.mesh.pp > 1 and (
        len(set(scenario.placement)) > 1 or scenario.plan.schedule.chunks > 1 or paired
    )


def layers(scenario: Scenario) -> Iterator[Piece]:
    """The pattern and what it carries: the order of layers, and which part each is."""
    model = scenario.model
    paired = any(len(symbols_of(block)) > 1 for block in model.blocks)
    carried = ["model.blocks.*.mixer.kind", "model.blocks.*.ffn.kind", "model.blocks.*.mixer", "model.blocks.*.ffn"]
    carried += [] if paired else ["model.order", "model.blocks.*.norms"]
    carried += ["model.mtp.depth", "model.mtp.block.norms"] if model.mtp is not None else []
    yield Say(OPTION, pattern(scenario), *carried)
    yield Say("--spec", SPEC)
    yield Say("--no-create-attention-mask-in-dataloader", True)
    if paired:
        for path in ("model.order", "model.blocks.*.norms", "model.blocks.*.mixer", "model.blocks.*.ffn"):
            yield Lose(path, PAIRED)


def states(scenario: Scenario) -> Iterator[Piece]:
    """Sizes of state-space layers."""
    for index, block in enumerate(scenario.model.blocks):
        yield from sizes_of(block.mixer, f"model.blocks.{index}.mixer")


def sizes_of(mixer: Mixer | None, path: str) -> Iterator[Piece]:
    """Sizes of one layer that keeps a state."""
    if isinstance(mixer, Mamba2):
        for name, option in MAMBA.items():
            yield Say(option, getattr(mixer, name), f"{path}.{name}")
        for name, value in (
            ("conv", 4),
            ("conv_bias", True),
            ("proj_bias", False),
            ("chunk", 128),
            ("gated_norm", True),
        ):
            yield Fixed(f"{path}.{name}", value, "what its Mamba layer has")
    if isinstance(mixer, GatedDeltaNet):
        for name, option in LINEAR.items():
            yield Say(option, getattr(mixer, name), f"{path}.{name}")


def stages(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, cut by the pattern."""
    plan, told = scenario.plan, ("plan.schedule.name", "plan.schedule.chunks", "plan.placement")
    if plan.schedule.name not in ("1f1b", "interleaved"):
        for path in told:
            yield Lose(path, "schedules are 1f1b and interleaved 1f1b; written: stages of the pattern")
    elif segmented(scenario):
        yield Say(OPTION, pattern(scenario), *told)
    yield Fixed("plan.schedule.name", "1f1b", "without virtual stages")
    yield Fixed("plan.schedule.chunks", 1, "without virtual stages")
    yield Fixed("plan.placement", scenario.placement, "an even split is the default")
