"""Turn the model of a Scenario into pieces in Megatron's words: small functions in one visible tuple, MODEL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ridgeline.models.spec import Attention, Block, GatedDeltaNet, LatentAttention, Mlp, ModelSpec, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Fixed, Like, Lose, Piece, Say
from ridgeline.targets.megatron.layout import pattern_of
from ridgeline.targets.megatron.names import POSITIONS
from ridgeline.targets.megatron.write_hybrid import cannot_spell, is_hybrid, layers, states
from ridgeline.targets.megatron.write_numerics import scaled_by_yarn

ONE = "one value holds for all layers"
MIXER, FFN = "model.blocks.*.mixer", "model.blocks.*.ffn"


def _shared(parts: list[Any], name: str) -> Any:
    """The one value of a field over all parts, or None where they differ."""
    values = {getattr(part, name) for part in parts}
    return values.pop() if len(values) == 1 else None


def _uniform(parts: list[Any], where: str, options: dict[str, str]) -> Iterator[Piece]:
    """Each field as its option, lost where layers differ in it."""
    for name, option in options.items():
        value = _shared(parts, name)
        path = f"{where}.{name}"
        yield Lose(path, ONE) if value is None else Say(option, value, path)


def sizes(scenario: Scenario) -> Iterator[Piece]:
    """Width, depth, vocabulary and length."""
    model, seq = scenario.model, scenario.workload.seq
    if not is_hybrid(model):  # whose pattern says it
        yield Say("--num-layers", model.layers, "model.order")
    yield Say("--hidden-size", model.hidden, "model.hidden")
    yield Say("--vocab-size", model.vocab, "model.vocab")
    learned = model.embedding.positions
    longest = max(learned or model.context, seq)
    yield Say("--max-position-embeddings", longest, *(["model.embedding.positions"] if learned == longest else []))
    if learned and learned != longest:
        yield Lose("model.embedding.positions", f"a row for each token of a sequence: {longest}")
    yield Fixed("model.embedding.positions", 0, "rotary positions have no rows")
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
    yield Fixed("model.embedding.tied", True, "tied unless told otherwise")
    yield Fixed("model.embedding.width", 0, "rows are as wide as the model")
    yield Fixed("model.embedding.norm", None, "no norm after the embedding")
    yield Lose("model.embedding.norm.*", "no norm after the embedding")
    yield Fixed("model.embedding.head_bias", False, "the output has no bias")
    yield Lose("model.embedding.softcap", "logits are not capped")
    yield Fixed("model.vision", None, "text only")
    yield Lose("model.vision.*", "pretrain_gpt.py trains text models")


def norms(scenario: Scenario) -> Iterator[Piece]:
    """One kind of norm, two in each layer and one at the end."""
    kind = _shared([block.norm for block in scenario.model.blocks], "kind")
    if kind is None:
        yield Lose("model.blocks.*.norm.kind", ONE)
    else:
        yield Say("--normalization", {"rms": "RMSNorm", "layer": "LayerNorm"}[kind], "model.blocks.*.norm.kind")
        yield Fixed("model.norm.kind", kind, "the last norm is of the layers' kind")
    for where in ("model.blocks.*.norm", "model.norm"):
        yield Fixed(f"{where}.bias", kind == "layer", "LayerNorm has a bias, RMSNorm has none")
        yield Fixed(f"{where}.weight", True, "norms have a weight")
    yield Lose("model.norm", "the last norm is always there")
    if not is_hybrid(scenario.model):
        yield Fixed("model.blocks.*.norms", 2, "two norms in a layer")
    yield Fixed("model.blocks.*.parallel", False, "attention, then feed-forward")
    yield Fixed("model.blocks.*.extra", 0, "no further parameters")
    yield Fixed("model.blocks.*.captured", None, "no layers but its own")
    yield Lose("model.blocks.*.captured.*", "no layers but its own: of a captured one ops are known and not the code")
    yield Fixed("model.capture", None, "how the model was read")
    yield Lose("model.capture.*", "how the model was read")


def mixers(scenario: Scenario) -> Iterator[Piece]:
    """Softmax attention, attention over a latent, or states beside attention, as a pattern spells them."""
    model = scenario.model
    if is_hybrid(model):
        yield from _hybrid(scenario)
        return
    found = [block.mixer for block in model.blocks]
    if all(isinstance(mixer, Attention) for mixer in found):
        yield from _attention(scenario, [mixer for mixer in found if isinstance(mixer, Attention)])
    elif all(isinstance(mixer, LatentAttention) for mixer in found):
        yield from _latent([mixer for mixer in found if isinstance(mixer, LatentAttention)])
    elif all(isinstance(mixer, (Attention, GatedDeltaNet)) for mixer in found):
        yield from _linear(scenario)
    else:
        yield Lose(
            "model.*", "it has no such layers: attention of one kind in all of them, or gated delta nets among it"
        )


def _hybrid(scenario: Scenario) -> Iterator[Piece]:
    """Layers that a pattern spells."""
    why = cannot_spell(scenario.model)
    if why:
        yield Lose("model.*", why)
        return
    yield from layers(scenario)
    yield from states(scenario)
    yield from _of_kind(scenario, Attention)
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
    yield from _of_kind(scenario, Attention)


def _of_kind(scenario: Scenario, kind: type[Attention]) -> Iterator[Piece]:
    """What is said of attention, of the blocks that have it: other mixers share names of fields."""
    numbered = [(index, block.mixer) for index, block in enumerate(scenario.model.blocks)]
    own = [(index, mixer) for index, mixer in numbered if isinstance(mixer, kind)]
    said = _attention(scenario, [mixer for _, mixer in own]) if own else iter(())
    for piece in said:
        if isinstance(piece, Like):
            continue
        paths = piece.paths if isinstance(piece, Say) else (piece.path,)
        whole = [path for path in paths if not path.startswith(MIXER)]
        split = [path.replace(".*.", f".{index}.") for index, _ in own for path in paths if path.startswith(MIXER)]
        if isinstance(piece, Say):
            yield Say(piece.option, piece.value, *whole, *split)
        elif isinstance(piece, Fixed):
            yield from (Fixed(path, piece.value, piece.why) for path in (*whole, *split))
        else:
            yield from (Lose(path, piece.why) for path in (*whole, *split))


def _attention(scenario: Scenario, found: list[Attention]) -> Iterator[Piece]:
    yield Fixed(f"{MIXER}.kind", "attention", "softmax attention unless told otherwise")
    heads, groups = _shared(found, "heads"), _shared(found, "kv_heads")
    yield from _uniform(found, MIXER, {"heads": "--num-attention-heads", "head_dim": "--kv-channels"})
    if groups is None:
        yield Lose(f"{MIXER}.kv_heads", ONE)
    elif groups == heads:
        yield Fixed(f"{MIXER}.kv_heads", groups, "as many as heads")
    else:
        yield Say("--group-query-attention", True, f"{MIXER}.kv_heads")
        yield Say("--num-query-groups", groups, f"{MIXER}.kv_heads")
    norm = _shared(found, "qk_norm")
    if norm == "head":
        yield Say("--qk-layernorm", True, f"{MIXER}.qk_norm")
    yield Fixed(f"{MIXER}.qk_norm", "none", "queries and keys are normalised by head or not at all")
    if _shared(found, "sinks"):
        yield Say("--softmax-type", "learnable", f"{MIXER}.sinks")
    yield Fixed(f"{MIXER}.sinks", False, "no learned logit unless told otherwise")
    yield Lose(f"{MIXER}.softcap", "scores are not capped")
    if _shared(found, "gate"):
        yield Say("--attention-output-gate", True, f"{MIXER}.gate")
    for name, value in (("v_head_dim", 0), ("chunked", False), ("gate", False), ("keys_as_values", False)):
        yield Fixed(f"{MIXER}.{name}", value, "no option for it")
    yield from _windows(scenario)
    yield from _positions(scenario)


def _by_layer(scenario: Scenario, name: str) -> list[Any]:
    """A field of every layer's attention; layers without attention have none."""
    found = [scenario.model.layer(index).mixer for index in range(scenario.model.layers)]
    return [getattr(mixer, name) for mixer in found if isinstance(mixer, Attention)]


def _windows(scenario: Scenario) -> Iterator[Piece]:
    """One window size, in all layers or in those a pattern names."""
    spans = _by_layer(scenario, "window")
    sizes = {span for span in spans if span}
    if len(sizes) > 1:
        for path in (f"{MIXER}.window", "model.order"):
            yield Lose(path, "one window size for all layers that have one")
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
        for path in (f"{MIXER}.positions", "model.order"):
            yield Lose(path, ONE)


def _latent(found: list[LatentAttention]) -> Iterator[Piece]:
    yield Say("--multi-latent-attention", True, f"{MIXER}.kind")
    yield Say("--position-embedding-type", "rope", f"{MIXER}.kind")
    yield Say("--qk-layernorm", True, f"{MIXER}.kind")  # the norms of both latents
    options = {"heads": "--num-attention-heads", "kv_rank": "--kv-lora-rank", "nope_dim": "--qk-head-dim"}
    options |= {"rope_dim": "--qk-pos-emb-head-dim", "v_dim": "--v-head-dim"}
    if _shared(found, "q_rank") == 0:
        yield Fixed(f"{MIXER}.q_rank", 0, "queries are projected directly unless told otherwise")
    else:
        options["q_rank"] = "--q-lora-rank"
    yield from _uniform(found, MIXER, options)
    yield Fixed(f"{MIXER}.bias", False, "projections of a latent have no bias")
    yield Fixed(f"{MIXER}.indexer", None, "no sparse attention")
    yield Lose(f"{MIXER}.indexer.*", "no sparse attention")


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
    numbered = [(index, block.ffn) for index, block in enumerate(blocks) if isinstance(block.ffn, kind)]
    for name, option in options.items():
        value = _shared([part for _, part in numbered], name)
        for index, _ in numbered:
            path = f"model.blocks.{index}.ffn.{name}"
            yield Lose(path, ONE) if value is None else Say(option, value, path)


def _experts(scenario: Scenario, found: list[Moe]) -> Iterator[Piece]:
    blocks = scenario.model.blocks
    options = {"experts": "--num-experts", "topk": "--moe-router-topk", "hidden": "--moe-ffn-hidden-size"}
    absent = {"shared_hidden": ("--moe-shared-expert-intermediate-size", 0), "latent": ("--moe-latent-size", 0)}
    absent |= {"groups": ("--moe-router-num-groups", 1), "group_topk": ("--moe-router-group-topk", 1)}
    grouped = _shared(found, "groups") != 1
    for name, (option, nothing) in absent.items():
        if _shared(found, name) != nothing or (name == "group_topk" and grouped):
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
    yield Fixed(f"{FFN}.shared_gate", False, "none unless told otherwise")
    yield Fixed(f"{FFN}.router_bias", False, "no option for it")


def _activation(shape: tuple[bool, str] | None) -> Iterator[Piece]:
    """Which of Megatron's few activations it is."""
    paths = (f"{FFN}.gated", f"{FFN}.activation")
    match shape:
        case (True, "silu"):
            yield Say("--swiglu", True, *paths)
        case (True, "quick_gelu"):
            yield Say("--quick-geglu", True, *paths)
        case (False, "relu2"):
            yield Say("--squared-relu", True, *paths)
        case (False, "gelu"):
            yield Fixed(paths[0], False, "not gated unless told otherwise")
            yield Fixed(paths[1], "gelu", "GELU unless told otherwise")
        case _:
            for path in paths:
                yield Lose(path, "SwiGLU, quick GeGLU, squared ReLU or GELU, one for all layers")


def biases(scenario: Scenario) -> Iterator[Piece]:
    """Everywhere, on queries, keys and values only, or nowhere."""
    attention = _attentions(scenario)
    parts: list[Any] = [block.ffn for block in scenario.model.blocks if block.ffn is not None]
    qkv = {mixer.qkv_bias for mixer in attention}
    rest = {mixer.out_bias for mixer in attention} | {part.bias for part in parts}
    paths = (f"{MIXER}.out_bias", f"{FFN}.bias")
    if qkv <= {True} and rest == {True}:
        for path in (f"{MIXER}.qkv_bias", *paths):
            yield Fixed(path, True, "linear layers have biases unless told otherwise")
        return
    if rest - {False}:
        for path in paths:
            yield Lose(path, "biases in all linear layers, in those of queries, keys and values, or in none")
    yield Say("--disable-bias-linear", True, *paths)
    if qkv == {True}:
        yield Say("--add-qkv-bias", True, f"{MIXER}.qkv_bias")
    elif len(qkv) > 1:
        yield Lose(f"{MIXER}.qkv_bias", ONE)
    yield Say("--disable-bias-linear", True, f"{MIXER}.qkv_bias")


def _attentions(scenario: Scenario) -> list[Attention]:
    return [block.mixer for block in scenario.model.blocks if isinstance(block.mixer, Attention)]


def order(scenario: Scenario) -> Iterator[Piece]:
    """Layers may differ in being dense or expert, in their window and in skipping positions; else order is lost."""

    if is_hybrid(scenario.model):
        return
    shapes = {(one.heads, one.kv_heads, one.head_dim) for one in _attentions(scenario)}
    kept = next(iter(shapes), None)

    def rest(block: Block) -> tuple[Any, ...]:
        mixer = block.mixer
        seen = (mixer.heads, mixer.kv_heads, mixer.head_dim) if isinstance(mixer, Attention) else mixer
        if isinstance(mixer, GatedDeltaNet):
            seen = kept
        return (seen, block.norm, block.norms, block.parallel, block.extra)

    if len({rest(block) for block in scenario.model.blocks}) > 1:
        yield Lose("model.order", "layers may differ only in experts, window and skipped positions")


def ahead(scenario: Scenario) -> Iterator[Piece]:
    """Multi-token prediction with copies of the last layer."""
    mtp = scenario.model.mtp
    yield Fixed("model.mtp", None, "none unless told otherwise")
    if mtp is not None and is_hybrid(scenario.model):
        yield from _ahead_of_pattern(scenario.model, mtp.block)
    elif mtp is not None:
        yield Say("--mtp-num-layers", mtp.depth, "model.mtp.depth")
        if mtp.block == scenario.model.blocks[scenario.model.order[-1]]:
            yield Like("model.mtp.block", f"model.blocks.{scenario.model.order[-1]}")
        else:
            yield Lose("model.mtp.block.*", "predicts further tokens with copies of the last layer")


def _ahead_of_pattern(model: ModelSpec, block: Block) -> Iterator[Piece]:
    """Layers behind the `/` of a pattern are those of the model's own kinds."""
    yield Like("model.mtp.block", "model.blocks.0")
    for name in ("mixer", "ffn"):
        part = getattr(block, name)
        like = next((index for index, one in enumerate(model.blocks) if getattr(one, name) == part and part), None)
        if part is not None and like is None:
            yield Lose("model.mtp.block.*", "predicts further tokens with layers like its others")
        elif part is not None:
            yield Like(f"model.mtp.block.{name}", f"model.blocks.{like}.{name}")
        else:
            yield Fixed(f"model.mtp.block.{name}", None, "a pattern spells it")


Writer = Callable[[Scenario], Iterator[Piece]]
MODEL: tuple[Writer, ...] = (sizes, embedding, norms, mixers, ffns, biases, order, ahead)
