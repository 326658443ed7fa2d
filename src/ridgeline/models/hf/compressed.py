"""Turn configs of DeepSeek-V4 into ModelSpecs: compressed attention, hyper-connections, experts on every layer."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.moe import experts
from ridgeline.models.hf.parts import SLIDING, hidden_size, model, predicted
from ridgeline.models.spec import Block, Captured, CompressedAttention, Embedding, Indexer, ModelSpec, Product

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
# of the elements that one hyper-connection of n streams moves in fused kernels (collapsing reads n and writes 1, mixing
# and expanding read n + 1 and write n), what counts as written
MOVED = 0.5
KERNELS = 3.0  # weights of the streams, collapse, mix and expand


def deepseek_v4(cfg: Config) -> ModelSpec:
    """DeepSeek-V4: one key-value head whose far tokens are pooled, four residual streams, a shared expert."""
    cfg.ignore("hc_sinkhorn_iters", "hc_eps", "swiglu_limit", "scoring_func", "expert_dtype", "compress_rope_theta")
    cfg.ignore("partial_rotary_factor", "qk_rope_head_dim", "topk_method", "mlp_layer_types", "num_hash_layers")
    for key in ("attention_bias", "mlp_bias"):
        cfg.only(key, False)
    cfg.only("num_key_value_heads", 1)
    cfg.only("n_shared_experts", 1)
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
    return model(cfg, blocks, embedding=embedding, mtp=predicted(depth, block))


def hyper_connections(hidden: int, streams: int) -> Captured:
    """What stands around both parts of a layer with n residual streams: n * h -> (2 + n) * n weights, by which streams
    are collapsed into the part's input, mixed with each other, and its output is dealt to them.

    parameters   2 * ((2 + n)*n * n*h + (2 + n)*n + 3)        h = hidden
    """
    weights, wide = (2 + streams) * streams, streams * hidden
    one = Product(label="hyper-connection", inputs=wide, outputs=weights)
    return Captured(
        products=(one, one),
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
    listed = cfg.words("layer_types", layers, (SLIDING, SPARSE, HEAVY))
    if listed:
        return listed
    words = {0: SLIDING, 4: SPARSE, 128: HEAVY}
    if len(ratios) >= layers and set(ratios) <= set(words):
        return tuple(words[ratio] for ratio in ratios[:layers])
    if ratios:
        cfg.bad("compress_ratios", ratios, f"{layers} numbers, each 0, 4 or 128")
    return tuple(SPARSE if index > 1 and index % 2 else HEAVY for index in range(layers))
