"""Turn configs of models with latent attention, from DeepSeek-V2 to GLM-5, LongCat and DeepSeek-V4 (compressed, with
hyper-connections), into ModelSpecs."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import SLIDING, dense_first, experts, grouped_experts, hidden_size, mlp, model, predictor
from ridgeline.models.spec import (
    Block,
    Captured,
    CompressedAttention,
    Embedding,
    Indexer,
    LatentAttention,
    ModelSpec,
    Moe,
    Product,
)


def latent(cfg: Config) -> LatentAttention:
    """Latent attention from its ranks and head sizes; the usual head keys of such files repeat them."""
    cfg.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    return LatentAttention(
        heads=cfg.count("num_attention_heads"),
        q_rank=cfg.count("q_lora_rank", 0),
        kv_rank=cfg.count("kv_lora_rank"),
        nope_dim=cfg.count("qk_nope_head_dim"),
        rope_dim=cfg.count("qk_rope_head_dim"),
        v_dim=cfg.count("v_head_dim"),
        bias=cfg.flag("attention_bias", False),
    )


def deepseek(cfg: Config) -> ModelSpec:
    """DeepSeek-V2 and V3, Kimi K2: dense layers first, then grouped experts beside shared ones."""
    hidden_size(cfg)
    layers = cfg.layers()
    return _deepseek(cfg, [latent(cfg)] * layers)


def plain_latent(cfg: Config) -> ModelSpec:
    """MiniCPM 3, Youtu: latent attention before a dense mlp on every layer."""
    cfg.ignore("dim_model_base", "scale_depth", "scale_emb", "embedding_initializer_range")
    block = Block(mixer=latent(cfg), ffn=mlp(cfg, bias=cfg.flag("mlp_bias", False)))
    return model(cfg, [block] * cfg.layers())


def axk1(cfg: Config) -> ModelSpec:
    """A.X K1: DeepSeek-V3 with a norm after the experts."""
    spec = deepseek(cfg)
    blocks = [replace(block, norms=3) if isinstance(block.ffn, Moe) else block for block in spec.blocks]
    return replace(spec, blocks=tuple(blocks))


def deepseek_v32(cfg: Config) -> ModelSpec:
    """DeepSeek-V3.2: V3 with an indexer that picks the tokens each query sees."""
    layers = cfg.layers()
    cfg.words("layer_types", layers, ("indexed_attention",))
    return _deepseek(cfg, [replace(latent(cfg), indexer=_indexer(cfg))] * layers)


def glm_moe_dsa(cfg: Config) -> ModelSpec:
    """GLM-5: V3.2's indexer, whose choice some layers take over from the last layer that made one."""
    cfg.ignore("index_share_for_mtp_iteration")
    layers = cfg.layers()
    cfg.words("layer_types", layers, ("indexed_attention",))
    scoring_layer = replace(latent(cfg), indexer=_indexer(cfg))
    sharing_layer = replace(scoring_layer, indexer=replace(_indexer(cfg), shared=True))
    return _deepseek(cfg, [sharing_layer if shared else scoring_layer for shared in _shared_choice(cfg, layers)])


def _deepseek(cfg: Config, mixers: list[LatentAttention]) -> ModelSpec:
    cfg.only("mlp_bias", False)
    moe, dense = grouped_experts(cfg), mlp(cfg)
    is_routed = dense_first(cfg, len(mixers))
    blocks = [Block(mixer=mixer, ffn=moe if e else dense) for mixer, e in zip(mixers, is_routed, strict=True)]
    depth = cfg.size(("num_nextn_predict_layers", "num_mtp_layers"), 0)
    return model(cfg, blocks, mtp=predictor(depth, Block(mixer=mixers[0], ffn=moe)))


def _indexer(cfg: Config) -> Indexer:
    return Indexer(heads=cfg.count("index_n_heads"), head_dim=cfg.count("index_head_dim"), topk=cfg.count("index_topk"))


def _shared_choice(cfg: Config, layers: int) -> list[bool]:
    """Which layers take over a choice: listed as words, as letters F and S, or every layer but each n-th."""
    interval, offset = cfg.count("index_topk_freq", 1), cfg.size("index_skip_topk_offset", 2)
    letters = cfg.data.get("index_topk_pattern")
    cfg.ignore("index_topk_pattern")
    layer_kinds = cfg.words("indexer_types", layers, ("full", "shared"))
    if layer_kinds:
        return [word == "shared" for word in layer_kinds]
    if letters is not None:
        if isinstance(letters, str) and len(letters) == layers and set(letters) <= {"F", "S"}:
            return [letter == "S" for letter in letters]
        cfg.bad("index_topk_pattern", letters, f"a string of {layers} letters, each F or S")
    return [max(index - offset + 1, 0) % interval != 0 for index in range(layers)]


def longcat_flash(cfg: Config) -> ModelSpec:
    """LongCat-Flash: a layer is two latent attentions and two dense mlps, with experts beside the first mlp that join
    behind the second. Some choices of the router do nothing; `topk` is what remains of the picks on average."""
    hidden = hidden_size(cfg)
    pairs = cfg.layers("num_layers") if not cfg.has("num_hidden_layers") or cfg.has("num_layers") else 0
    pairs = pairs or max(1, cfg.layers() // 2)
    cfg.understand("longcat_flash")
    attention, dense = latent(cfg), mlp(cfg, ("ffn_hidden_size", "intermediate_size"))
    experts, idle = cfg.count(("n_routed_experts", "num_local_experts")), cfg.size("zero_expert_num", 0)
    topk = cfg.count(("moe_topk", "num_experts_per_tok"))
    moe = Moe(
        experts=experts,
        topk=max(1, round(topk * experts / (experts + idle))),
        hidden=cfg.count(("expert_ffn_hidden_size", "moe_intermediate_size")),
        shared_hidden=dense.hidden,
        activation=dense.activation,
        router_bias=cfg.flag("router_bias", False),
        idle=idle,
    )
    layer_blocks = [Block(mixer=attention, ffn=moe), Block(mixer=attention, ffn=dense)]
    return model(cfg, layer_blocks * pairs, hidden=hidden)


SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
# of the elements that one hyper-connection of n streams moves in fused kernels (collapsing reads n and writes 1, mixing
# and expanding read n + 1 and write n), what counts as written
MOVED = 0.5
KERNELS = 3.0  # weights of the streams, collapse, mix and expand


def deepseek_v4(cfg: Config) -> ModelSpec:
    """DeepSeek-V4: one key-value head whose far tokens are pooled, four residual streams, a shared expert."""
    cfg.understand("deepseek_v4")
    layers = cfg.layers()
    rates = _rates(cfg)
    near = CompressedAttention(
        heads=cfg.count("num_attention_heads"),
        head_dim=cfg.count("head_dim"),
        q_rank=cfg.count("q_lora_rank"),
        window=cfg.count("sliding_window"),
        o_groups=cfg.count("o_groups"),
        o_rank=cfg.count("o_lora_rank"),
    )
    for problem in near.problems():
        cfg.clash(problem.path, problem.given, problem.expected)
    scorer = cfg.count("index_n_heads"), cfg.count("index_head_dim"), cfg.count("index_topk")
    picks = Indexer(heads=scorer[0], head_dim=scorer[1], topk=scorer[2])
    mixers = {
        SLIDING: near,
        SPARSE: replace(near, rate=rates[SPARSE], overlap=True, indexer=picks),
        HEAVY: replace(near, rate=rates[HEAVY]),
    }
    moe = experts(cfg)
    streams = cfg.count("hc_mult")
    block = Block(
        mixer=near, ffn=replace(moe, shared_hidden=moe.hidden), captured=hyper_connections(hidden_size(cfg), streams)
    )
    head = streams * streams * hidden_size(cfg) + streams + 1  # collapses the streams before the last norm
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings", False), further_weights=head)
    blocks = [replace(block, mixer=mixers[kind]) for kind in _kinds(cfg, layers)]
    depth = cfg.size("num_nextn_predict_layers", 0)
    return model(cfg, blocks, embedding=embedding, mtp=predictor(depth, block))


def hyper_connections(hidden: int, streams: int) -> Captured:
    """What stands around both parts of a layer with n residual streams: n * h -> (2 + n) * n weights, by which streams
    are collapsed into the part's input, mixed with each other, and its output is dealt to them.

    parameters   2 * ((2 + n)*n * n*h + (2 + n)*n + 3)        h = hidden
    """
    weights, wide = (2 + streams) * streams, streams * hidden
    connection = Product(label="hyper-connection", inputs=wide, outputs=weights)
    return Captured(
        products=(connection, connection),
        streams=2 * MOVED * (3 * streams + 2) * hidden,
        kernels=2 * KERNELS,
        params=2 * (weights * wide + weights + 3),
        saved=float(2 * wide + 2 * weights),
    )


def _rates(cfg: Config) -> dict[str, int]:
    """Tokens of a pooled entry by kind of layer, from a table or from two older keys."""
    table = cfg.child("compress_rates")
    old = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
    return {kind: cfg.count(old[kind], table.count(kind, rate) if table else rate) for kind, rate in RATES.items()}


def _kinds(cfg: Config, layers: int) -> tuple[str, ...]:
    """The kind of each layer: listed, as older rates of each layer, or two heavy ones and both kinds in turn."""
    ratios = cfg.counts("compress_ratios")
    layer_kinds = cfg.words("layer_types", layers, (SLIDING, SPARSE, HEAVY))
    if layer_kinds:
        return layer_kinds
    words = {0: SLIDING, 4: SPARSE, 128: HEAVY}
    if len(ratios) >= layers and set(ratios) <= set(words):
        return tuple(words[ratio] for ratio in ratios[:layers])
    if ratios:
        cfg.bad("compress_ratios", ratios, f"{layers} numbers, each 0, 4 or 128")
    return tuple(SPARSE if index > 1 and index % 2 else HEAVY for index in range(layers))
