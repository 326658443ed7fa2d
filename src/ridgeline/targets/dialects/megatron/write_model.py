"""Turn a model into pieces in Megatron's words: its layers, or the pattern that spells them, and its numerics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from ridgeline.models.numerics import RotaryScaling, numerics_of, unknown_numerics
from ridgeline.models.spec import (
    Attention,
    Block,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    Recurrence,
)
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.dialects.megatron.names import ID, POSITIONS, pattern_of
from ridgeline.targets.ledger import Fixed, Like, Lose, Piece, Say, fix, habits, lose
from ridgeline.targets.option_table import option_names
from ridgeline.targets.tables import values

AT = "model.numerics"
FIRST = 4096  # the first context that YaRN takes for granted
OPTION = "--hybrid-layer-pattern"
SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
SYMBOLS: dict[type[object], str] = {Mamba2: "M", GatedDeltaNet: "G", Attention: "*", LatentAttention: "+"}
SYMBOLS |= {Mlp: "-", Moe: "E"}
PAIRED = "each part of a layer stands as a layer of its own"
ONE_FOR_ALL = "one value holds for all layers"
MIXER, FFN = "model.blocks.*.mixer", "model.blocks.*.ffn"
# (gated, activation) -> the switch of it
ACTIVATIONS = {(True, "silu"): "--swiglu", (True, "quick_gelu"): "--quick-geglu", (False, "relu2"): "--squared-relu"}
Writer = Callable[[Scenario], Iterator[Piece]]


def numerics(scenario: Scenario) -> Iterator[Piece]:
    """What a converted checkpoint needs, and what training from nothing should have too."""
    numerics = numerics_of(scenario.model)
    rotates = _latent(scenario.model) or any(mixer.positions == "rope" for mixer in _attentions(scenario))
    if numerics.rotary_base is not None and rotates:
        yield Say("--rotary-base", int(numerics.rotary_base), f"{AT}.rotary_base")
    yield Fixed(f"{AT}.rotary_base", numerics.rotary_base, "no positions are rotated")
    if numerics.rotary_share is not None and not _latent(scenario.model):
        yield Say("--rotary-percent", numerics.rotary_share, f"{AT}.rotary_share")
    yield Fixed(f"{AT}.rotary_share", numerics.rotary_share, "how much of a head is rotated has its own size here")
    yield from habits("megatron", "numerics")
    if numerics.norm_eps is not None:
        yield Say("--norm-epsilon", numerics.norm_eps, f"{AT}.norm_eps")
    sizes = {mixer.head_dim for mixer in _attentions(scenario)}
    head_size = next(iter(sizes)) if len(sizes) == 1 else None
    yield Fixed(f"{AT}.score_scale", head_size, "scores are scaled by a head's size")
    yield from _scaling(scenario)
    yield from _router(scenario)
    yield from unknown_losses(scenario.model)


def unknown_losses(model: ModelSpec) -> Iterator[Lose]:
    """Numerics that nobody published, which the user has to look up."""
    if unknown := unknown_numerics(model):
        why = f"{', '.join(unknown)} of this model: not known; set them as its checkpoint has them"
        yield Lose(f"{AT}.unknown", why, yours=True)


def _latent(model: ModelSpec) -> bool:
    return all(isinstance(block.mixer, LatentAttention) for block in model.blocks)


def scaled_by_yarn(model: ModelSpec) -> bool:
    """Whether positions of softmax attention are scaled by YaRN, which is a kind of position embedding here."""
    scaling = numerics_of(model).rotary_scaling
    return scaling is not None and scaling.kind == "yarn" and not _latent(model)


def _scaling(scenario: Scenario) -> Iterator[Piece]:
    scaling, at = numerics_of(scenario.model).rotary_scaling, f"{AT}.rotary_scaling"
    latent = _latent(scenario.model)
    if scaling is not None and scaling.kind == "yarn":
        yield from _yarn(scaling, latent)
        return
    if scaling is not None and scaling.kind == "llama3":
        yield Say("--use-rope-scaling", True, f"{at}.kind")
        yield Say("--rope-scaling-factor", scaling.factor, f"{at}.factor")
        for name, value in (("first_context", 8192), ("fast", 4.0), ("slow", 1.0)):
            yield Fixed(f"{at}.{name}", value, "what its Llama 3 scaling has")
    elif scaling is not None:
        yield Lose(f"{at}.*", "positions are scaled as Llama 3 does or by YaRN")
    if latent:
        yield Say("--rope-type", "rope")


def _yarn(scaling: RotaryScaling, latent: bool) -> Iterator[Piece]:
    at = f"{AT}.rotary_scaling"
    yield Say("--rope-type", "yarn", f"{at}.kind") if latent else Say("--position-embedding-type", "yarn", f"{at}.kind")
    yield Say("--rotary-scaling-factor", scaling.factor, f"{at}.factor")
    if latent:
        for name, option in (("mscale", "--mscale"), ("mscale_all", "--mscale-all-dim")):
            if getattr(scaling, name) is not None:
                yield Say(option, getattr(scaling, name), f"{at}.{name}")
        for name, value in (("first_context", FIRST), ("fast", 32.0), ("slow", 1.0)):
            yield Fixed(f"{at}.{name}", value, "what YaRN starts from unless told otherwise")
        return
    yield Say("--yarn-original-max-position-embeddings", scaling.first_context, f"{at}.first_context")
    for name, option in (("fast", "--yarn-beta-fast"), ("slow", "--yarn-beta-slow")):
        if getattr(scaling, name) is not None:
            yield Say(option, getattr(scaling, name), f"{at}.{name}")
    yield Lose(f"{at}.mscale*", "scores are scaled with YaRN in latent attention")


def _router(scenario: Scenario) -> Iterator[Piece]:
    router, at = numerics_of(scenario.model).router, f"{AT}.router"
    if router is None or not has_experts(scenario.model):
        yield Fixed(f"{at}.*", None, "no experts")
        return
    yield Say("--moe-router-score-function", router.score, f"{at}.score")
    if router.bias:
        yield Say("--moe-router-enable-expert-bias", True, f"{at}.bias")
    yield Fixed(f"{at}.bias", False, "none unless told otherwise")
    if router.scale != 1.0:
        yield Say("--moe-router-topk-scaling-factor", router.scale, f"{at}.scale")
    yield Fixed(f"{at}.scale", 1.0, "as they are unless told otherwise")
    if router.normalized is False and router.score == "softmax":  # a softmax over all experts, before some are picked
        yield Say("--moe-router-pre-softmax", True, f"{at}.normalized")
    yield Fixed(f"{at}.normalized", True, "weights of the picked experts add up to one")
    if router.aux_loss is not None:
        yield Say("--moe-router-load-balancing-type", "aux_loss", f"{at}.aux_loss")
        yield Say("--moe-aux-loss-coeff", router.aux_loss, f"{at}.aux_loss")


def is_hybrid(model: ModelSpec) -> bool:
    """Whether layers are spelled by a pattern: some are state spaces, or single parts.

    >>> from ridgeline.models.load import MODELS
    >>> is_hybrid(MODELS["nemotron-h-8b"]), is_hybrid(MODELS["llama3-8b"]), is_hybrid(MODELS["qwen3-next-80b-a3b"])
    (True, False, False)
    """
    blocks = model.blocks
    return any(
        isinstance(block.mixer, Mamba2) or not (block.mixer and block.ffn) or _unknown(block) for block in blocks
    )


def _unknown(block: Block) -> bool:
    return block.captured is not None or block.beside is not None or isinstance(block.mixer, Recurrence)


def symbols_of(block: Block) -> str:
    """The layers that a block is there; nothing where it has no word for a part, or parts do not follow each other."""
    parts = [part for part in (block.mixer, block.ffn) if part is not None]
    stands_alone = block.cross is None and not _unknown(block)
    plain = not block.parallel and block.norms == len(parts) and stands_alone
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
    ends = [0, *accumulate(scenario.placement)] if cuts and needs_segments(scenario) else [0, model.layers]
    main = "|".join("".join(layers[before:after]) for before, after in pairwise(ends))
    ahead = f"/{symbols_of(model.mtp.block)}" * model.mtp.depth if model.mtp is not None else ""
    return main + ahead


def needs_segments(scenario: Scenario) -> bool:
    """Whether stages have to be spelled: virtual ones, uneven ones, and of blocks that are two layers there."""
    has_pairs = any(len(symbols_of(block)) > 1 for block in scenario.model.blocks)
    is_cut = len(set(scenario.placement)) > 1 or scenario.plan.schedule.chunks > 1 or has_pairs
    return scenario.plan.mesh.pp > 1 and is_cut


def layers(scenario: Scenario) -> Iterator[Piece]:
    """The pattern and what it carries: the order of layers, and which part each is."""
    model = scenario.model
    has_pairs = any(len(symbols_of(block)) > 1 for block in model.blocks)
    paths_carried = [f"{part}{kind}" for kind in (".kind", "") for part in (MIXER, FFN)]
    paths_carried += [] if has_pairs else ["model.order", "model.blocks.*.norms"]
    paths_carried += ["model.mtp.depth", "model.mtp.block.norms"] if model.mtp is not None else []
    yield Say(OPTION, pattern(scenario), *paths_carried)
    yield Say("--spec", SPEC)
    yield Say("--no-create-attention-mask-in-dataloader", True)
    if has_pairs:
        yield from lose(PAIRED, "model.order", "model.blocks.*.norms", "model.blocks.*.mixer", "model.blocks.*.ffn")


def states(scenario: Scenario) -> Iterator[Piece]:
    """Sizes of layers that keep a state."""
    for index, block in enumerate(scenario.model.blocks):
        mixer, path = block.mixer, f"model.blocks.{index}.mixer"
        if isinstance(mixer, (Mamba2, GatedDeltaNet)):
            for name, option in option_names(ID, "mamba" if isinstance(mixer, Mamba2) else "linear").items():
                yield Say(option, getattr(mixer, name), f"{path}.{name}")
        if isinstance(mixer, Mamba2):
            for name, value in values(ID, "mamba_fixed").items():
                yield Fixed(f"{path}.{name}", value, "what its Mamba layer has")


def stages(scenario: Scenario) -> Iterator[Piece]:
    """1f1b and interleaved, cut by the pattern."""
    plan, schedule_paths = scenario.plan, ("plan.schedule.name", "plan.schedule.chunks", "plan.placement")
    if plan.schedule.name not in ("1f1b", "interleaved"):
        yield from lose("schedules are 1f1b and interleaved 1f1b; written: stages of the pattern", *schedule_paths)
    elif needs_segments(scenario):
        yield Say(OPTION, pattern(scenario), *schedule_paths)
    yield from habits("megatron", "stages")
    yield Fixed("plan.placement", scenario.placement, "an even split is the default")


def _shared(parts: Sequence[object], name: str) -> Any:
    """The one value of a field over all parts, or None where they differ."""
    values = {getattr(part, name) for part in parts}
    return values.pop() if len(values) == 1 else None


def _uniform(parts: Sequence[object], where: str, options: dict[str, str]) -> Iterator[Piece]:
    """Each field as its option, lost where layers differ in it."""
    for name, option in options.items():
        value = _shared(parts, name)
        path = f"{where}.{name}"
        yield Lose(path, ONE_FOR_ALL) if value is None else Say(option, value, path)


def sizes(scenario: Scenario) -> Iterator[Piece]:
    """Width, depth, vocabulary and length."""
    model, seq = scenario.model, scenario.workload.seq
    if not is_hybrid(model):  # whose pattern says it
        yield Say("--num-layers", model.layers, "model.order")
    yield Say("--hidden-size", model.hidden, "model.hidden")
    yield Say("--vocab-size", model.vocab, "model.vocab")
    position_rows = model.embedding.positions
    longest = max(position_rows or model.context, seq)
    paths = ["model.embedding.positions"] if position_rows == longest else []
    yield Say("--max-position-embeddings", longest, *paths)
    if position_rows and position_rows != longest:
        yield Lose("model.embedding.positions", f"a row for each token of a sequence: {longest}")
    if longest == model.context:
        yield Say("--max-position-embeddings", longest, "model.context")
    elif model.context == 0:
        yield Fixed("model.context", 0, "not stated")
    else:
        yield Lose("model.context", f"--max-position-embeddings has to be {longest}")


def embedding(scenario: Scenario) -> Iterator[Piece]:
    """Tied or not; what Megatron's embedding does not have."""
    if not scenario.model.embedding.tied:
        yield Say("--untie-embeddings-and-output-weights", True, "model.embedding.tied")
    yield from habits("megatron", "embedding")


def norms(scenario: Scenario) -> Iterator[Piece]:
    """One kind of norm, two in each layer and one at the end."""
    kind = _shared([block.norm for block in scenario.model.blocks], "kind")
    if kind is None:
        yield Lose("model.blocks.*.norm.kind", ONE_FOR_ALL)
    else:
        yield Say("--normalization", {"rms": "RMSNorm", "layer": "LayerNorm"}[kind], "model.blocks.*.norm.kind")
        yield Fixed("model.norm.kind", kind, "the last norm is of the layers' kind")
    for where in ("model.blocks.*.norm", "model.norm"):
        yield Fixed(f"{where}.bias", kind == "layer", "LayerNorm has a bias, RMSNorm has none")
        yield Fixed(f"{where}.weight", True, "norms have a weight")
    yield from habits("megatron", "norms")
    if not is_hybrid(scenario.model):
        yield Fixed("model.blocks.*.norms", 2, "two norms in a layer")


def mixers(scenario: Scenario) -> Iterator[Piece]:
    """Softmax attention, attention over a latent, or states beside attention, as a pattern spells them."""
    model = scenario.model
    if is_hybrid(model):
        yield from _hybrid(scenario)
        return
    every_mixer = [block.mixer for block in model.blocks]
    attentions = _attentions(scenario)
    latents = [mixer for mixer in every_mixer if isinstance(mixer, LatentAttention)]
    if len(attentions) == len(every_mixer):
        yield from _attention(scenario, attentions)
    elif len(latents) == len(every_mixer):
        yield Say("--multi-latent-attention", True, f"{MIXER}.kind")
        yield Say("--position-embedding-type", "rope", f"{MIXER}.kind")
        yield Say("--qk-layernorm", True, f"{MIXER}.kind")  # the norms of both latents
        options = {"heads": "--num-attention-heads", **option_names(ID, "latent")}
        if _shared(latents, "q_rank") == 0:
            yield Fixed(f"{MIXER}.q_rank", 0, "queries are projected directly unless told otherwise")
        else:
            options["q_rank"] = "--q-lora-rank"
        yield from _uniform(latents, MIXER, options)
        yield from habits("megatron", "write_latent")
    elif all(isinstance(mixer, (Attention, GatedDeltaNet)) for mixer in every_mixer):
        yield from _linear(scenario)
    else:
        why = "it has no such layers: attention of one kind in all of them, or gated delta nets among it"
        yield Lose("model.*", why)


def _hybrid(scenario: Scenario) -> Iterator[Piece]:
    why = cannot_spell(scenario.model)
    if why:
        yield Lose("model.*", why)
        return
    yield from layers(scenario)
    yield from states(scenario)
    yield from _of_attention(scenario)
    if not _attentions(scenario):  # the parser wants a number all the same
        yield Say("--num-attention-heads", max(1, scenario.model.hidden // 128))


def _linear(scenario: Scenario) -> Iterator[Piece]:
    """Gated delta nets in most layers, attention in the rest."""
    model = scenario.model
    if len({block.mixer for block in model.blocks if isinstance(block.mixer, GatedDeltaNet)}) > 1:
        yield Lose(f"{MIXER}*", "gated delta nets of one shape")
        return
    flags = tuple(isinstance(model.layer(index).mixer, GatedDeltaNet) for index in range(model.layers))
    yield Say("--experimental-attention-variant", "gated_delta_net", f"{MIXER}.kind")
    yield Say("--linear-attention-freq", pattern_of(flags), f"{MIXER}.kind", "model.order")
    yield from states(scenario)
    yield from _of_attention(scenario)


def _of_attention(scenario: Scenario) -> Iterator[Piece]:
    """What is said of attention, of the blocks that have it: other mixers share names of fields."""
    numbers = [at for at, block in enumerate(scenario.model.blocks) if isinstance(block.mixer, Attention)]
    for piece in _attention(scenario, _attentions(scenario)) if numbers else ():
        if isinstance(piece, Like):
            continue
        stated = piece.paths if isinstance(piece, Say) else (piece.path,)
        split = [path.replace(".*.", f".{at}.") for at in numbers for path in stated if path.startswith(MIXER)]
        paths = [path for path in stated if not path.startswith(MIXER)] + split
        match piece:
            case Say():
                yield Say(piece.option, piece.value, *paths)
            case Fixed():
                yield from fix(piece.value, piece.why, *paths)
            case Lose():
                yield from lose(piece.why, *paths)


def _attention(scenario: Scenario, found: list[Attention]) -> Iterator[Piece]:
    yield from habits("megatron", "attention")
    heads, groups = _shared(found, "heads"), _shared(found, "kv_heads")
    yield from _uniform(found, MIXER, {"heads": "--num-attention-heads", "head_dim": "--kv-channels"})
    if groups is None:
        yield Lose(f"{MIXER}.kv_heads", ONE_FOR_ALL)
    elif groups == heads:
        yield Fixed(f"{MIXER}.kv_heads", groups, "as many as heads")
    else:
        yield Say("--group-query-attention", True, f"{MIXER}.kv_heads")
        yield Say("--num-query-groups", groups, f"{MIXER}.kv_heads")
    if _shared(found, "qk_norm") == "head":
        yield Say("--qk-layernorm", True, f"{MIXER}.qk_norm")
    if _shared(found, "sinks"):
        yield Say("--softmax-type", "learnable", f"{MIXER}.sinks")
    if _shared(found, "gate"):
        yield Say("--attention-output-gate", True, f"{MIXER}.gate")
    yield from _windows(scenario)
    yield from _positions(scenario)


def _by_layer(scenario: Scenario, name: str) -> list[Any]:
    """A field of every layer's attention; layers without attention have none."""
    mixers_found = [scenario.model.layer(index).mixer for index in range(scenario.model.layers)]
    return [getattr(mixer, name) for mixer in mixers_found if isinstance(mixer, Attention)]


def _windows(scenario: Scenario) -> Iterator[Piece]:
    """One window size, in all layers or in those a pattern names."""
    spans = _by_layer(scenario, "window")
    sizes = {span for span in spans if span}
    if len(sizes) > 1:
        yield from lose("one window size for all layers that have one", f"{MIXER}.window", "model.order")
    elif sizes:
        # tokens to the left, as the project's own recipes write it: the token itself comes on top
        yield Say("--window-size", f"{sizes.pop()},0", f"{MIXER}.window")
        if not all(spans):
            pattern = pattern_of(tuple(bool(span) for span in spans))
            yield Say("--window-attn-skip-freq", pattern, f"{MIXER}.window", "model.order")
    yield Fixed(f"{MIXER}.window", 0, "attention sees all tokens unless told otherwise")


def _positions(scenario: Scenario) -> Iterator[Piece]:
    """One kind of positions, or rotary ones that some layers skip."""
    kinds = _by_layer(scenario, "positions")
    if set(kinds) == {"rope", "none"}:
        word = "yarn" if scaled_by_yarn(scenario.model) else "rope"
        yield Say("--position-embedding-type", word, f"{MIXER}.positions")
        pattern = pattern_of(tuple(kind == "none" for kind in kinds))
        yield Say("--no-rope-freq", pattern, f"{MIXER}.positions", "model.order")
    elif len(set(kinds)) == 1:
        word = "yarn" if kinds[0] == "rope" and scaled_by_yarn(scenario.model) else POSITIONS[kinds[0]]
        yield Say("--position-embedding-type", word, f"{MIXER}.positions")
    else:
        yield from lose(ONE_FOR_ALL, f"{MIXER}.positions", "model.order")


def ffns(scenario: Scenario) -> Iterator[Piece]:
    """Dense layers of one width and expert layers of one shape, in the order a pattern spells."""
    blocks = scenario.model.blocks
    dense = [block.ffn for block in blocks if isinstance(block.ffn, Mlp)]
    experts = [block.ffn for block in blocks if isinstance(block.ffn, Moe)]
    if not is_hybrid(scenario.model):
        yield Fixed(f"{FFN}.kind", "mlp", "dense unless told otherwise")
    if dense:
        yield from _widths(blocks, Mlp, {"hidden": "--ffn-hidden-size"})
    elif experts:  # the parser would otherwise make up four times the hidden size
        yield Say("--ffn-hidden-size", experts[0].hidden)
    if experts:
        yield from _experts(scenario, experts)
    parts: list[Any] = [*dense, *experts]
    shape = {(part.gated, part.activation) for part in parts}
    yield from _activation(shape.pop() if len(shape) == 1 else None)


def _widths(blocks: tuple[Block, ...], kind: type[Mlp] | type[Moe], options: dict[str, str]) -> Iterator[Piece]:
    """Fields of the blocks of one kind, by the blocks' own numbers: dense and expert layers share field names."""
    numbered_parts = [(index, block.ffn) for index, block in enumerate(blocks) if isinstance(block.ffn, kind)]
    for name, option in options.items():
        value = _shared([part for _, part in numbered_parts], name)
        for index, _ in numbered_parts:
            path = f"model.blocks.{index}.ffn.{name}"
            yield Lose(path, ONE_FOR_ALL) if value is None else Say(option, value, path)


def _experts(scenario: Scenario, found: list[Moe]) -> Iterator[Piece]:
    blocks = scenario.model.blocks
    options = option_names(ID, "experts")
    has_groups = _shared(found, "groups") != 1
    for name, option in option_names(ID, "more_experts").items():
        nothing = 1 if name.startswith("group") else 0
        if _shared(found, name) != nothing or (name == "group_topk" and has_groups):
            options[name] = option
        yield Fixed(f"{FFN}.{name}", nothing, "there is none unless told otherwise")
    yield from _widths(blocks, Moe, options)
    pattern = tuple(isinstance(scenario.model.layer(index).ffn, Moe) for index in range(scenario.model.layers))
    freq = "1" if all(pattern) else pattern_of(pattern)
    if not is_hybrid(scenario.model):
        yield Say("--moe-layer-freq", freq, "model.order", f"{FFN}.kind")
    if _shared(found, "topk") == 1:  # a softmax over one expert would always be one
        yield Say("--moe-router-pre-softmax", True)
    if scenario.plan.precision.activations.id == "bf16":  # the only format its kernels take
        yield Say("--moe-grouped-gemm", True)
    if _shared(found, "shared_gate"):
        yield Say("--moe-shared-expert-gate", True, f"{FFN}.shared_gate")
    yield from habits("megatron", "experts")


def _activation(shape: tuple[bool, str] | None) -> Iterator[Piece]:
    paths = (f"{FFN}.gated", f"{FFN}.activation")
    if shape in ACTIVATIONS:
        yield Say(ACTIVATIONS[shape], True, *paths)
    elif shape == (False, "gelu"):
        yield Fixed(paths[0], False, "not gated unless told otherwise")
        yield Fixed(paths[1], "gelu", "GELU unless told otherwise")
    else:
        yield from lose("SwiGLU, quick GeGLU, squared ReLU or GELU, one for all layers", *paths)


def biases(scenario: Scenario) -> Iterator[Piece]:
    """Everywhere, on queries, keys and values only, or nowhere."""
    attention = _attentions(scenario)
    parts: list[Any] = [block.ffn for block in scenario.model.blocks if block.ffn is not None]
    qkv = {mixer.qkv_bias for mixer in attention}
    other_biases = {mixer.out_bias for mixer in attention} | {part.bias for part in parts}
    paths = (f"{MIXER}.out_bias", f"{FFN}.bias")
    if qkv <= {True} and other_biases == {True}:
        yield from fix(True, "linear layers have biases unless told otherwise", f"{MIXER}.qkv_bias", *paths)
        return
    if other_biases - {False}:
        yield from lose("biases in all linear layers, in those of queries, keys and values, or in none", *paths)
    yield Say("--disable-bias-linear", True, *paths)
    if qkv == {True}:
        yield Say("--add-qkv-bias", True, f"{MIXER}.qkv_bias")
    elif len(qkv) > 1:
        yield Lose(f"{MIXER}.qkv_bias", ONE_FOR_ALL)
    yield Say("--disable-bias-linear", True, f"{MIXER}.qkv_bias")


def _attentions(scenario: Scenario) -> list[Attention]:
    return [block.mixer for block in scenario.model.blocks if isinstance(block.mixer, Attention)]


def order(scenario: Scenario) -> Iterator[Piece]:
    """Layers may differ in being dense or expert, in their window and in skipping positions; else order is lost."""

    if is_hybrid(scenario.model):
        return
    shapes = {(mixer.heads, mixer.kv_heads, mixer.head_dim) for mixer in _attentions(scenario)}
    first_shape = next(iter(shapes), None)

    def other_fields(block: Block) -> tuple[object, ...]:
        mixer = block.mixer
        shape: object = (mixer.heads, mixer.kv_heads, mixer.head_dim) if isinstance(mixer, Attention) else mixer
        shape = first_shape if isinstance(mixer, GatedDeltaNet) else shape
        return (shape, block.norm, block.norms, block.parallel, block.extra)

    if len({other_fields(block) for block in scenario.model.blocks}) > 1:
        yield Lose("model.order", "layers may differ only in experts, window and skipped positions")


def ahead(scenario: Scenario) -> Iterator[Piece]:
    """Multi-token prediction with copies of the last layer."""
    mtp = scenario.model.mtp
    if mtp is not None and is_hybrid(scenario.model):
        # layers behind the `/` of a pattern are those of the model's own kinds
        yield Like("model.mtp.block", "model.blocks.0")
        for name in ("mixer", "ffn"):
            part = getattr(mtp.block, name)
            numbered = enumerate(getattr(other, name) for other in scenario.model.blocks)
            like = next((index for index, other_part in numbered if other_part == part and part), None)
            if part is not None and like is None:
                yield Lose("model.mtp.block.*", "predicts further tokens with layers like its others")
            elif part is not None:
                yield Like(f"model.mtp.block.{name}", f"model.blocks.{like}.{name}")
            else:
                yield Fixed(f"model.mtp.block.{name}", None, "a pattern spells it")
    elif mtp is not None:
        yield Say("--mtp-num-layers", mtp.depth, "model.mtp.depth")
        if mtp.block == scenario.model.blocks[scenario.model.order[-1]]:
            yield Like("model.mtp.block", f"model.blocks.{scenario.model.order[-1]}")
        else:
            yield Lose("model.mtp.block.*", "predicts further tokens with copies of the last layer")


MODEL: tuple[Writer, ...] = (sizes, embedding, norms, mixers, ffns, biases, order, ahead)
