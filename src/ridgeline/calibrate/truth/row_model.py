"""Turn a row's dimension columns and its model's name into the table of dimensions that `ridgeline.model` takes.

The columns define the model. The name, where the catalog knows it, supplies what they leave open: latent-attention
sizes, head size, layer pattern, biases, norms, positions. Only what differs from the catalog is written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.calibrate.truth.rows import RowCells, Unusable
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.core.units import DECIMAL
from ridgeline.models.load import MODELS, find_name, model
from ridgeline.models.params import count


def assumed_sizes(cells: RowCells, gated: bool) -> RowCells:
    """The row with what its width and parameters suggest where it is blank; notes are shared with the given one.

        heads   h / 128, or h over the first other common size of a head that divides h into a number tp divides
        ffn     4 h; with a gate 8/3 h, rounded up to a multiple of 256
        layers  (P - v h) / (4 h^2 + m h f)       m = 2 matrices of the feed-forward part, 3 with a gate

    h = hidden, v = vocabulary, f = ffn, P = parameters. What most models do; every use is noted.
    """
    hidden, sizes = cells.need("hidden"), {}
    if cells.count("heads") is None:
        sizes["heads"] = _guessed_heads(hidden, cells.count("tp") or 1)
    if cells.count("ffn_hidden") is None and not cells.size("experts"):
        sizes["ffn_hidden"] = -(-hidden * 8 // 3 // 256) * 256 if gated else 4 * hidden
    if cells.count("layers") is None:
        sizes["layers"] = _layers(cells, gated, sizes.get("ffn_hidden") or cells.count("ffn_hidden"))
    for column, value in sizes.items():
        cells.note(f"{column} = {value}: blank in the table; what width and parameters suggest")
    full_cells = {**cells.row.cells, **{column: str(value) for column, value in sizes.items()}}
    return replace(cells, row=replace(cells.row, cells=MappingProxyType(full_cells))) if sizes else cells


HEAD_WIDTHS = (128, 64, 96, 80, 160, 256, 112, 72, 48, 32)  # of published models, the most common first


def _guessed_heads(hidden: int, tp: int) -> int:
    """Heads of a common width that tensor ranks can share; the run ran, so a guess that they cannot share is wrong.

    >>> _guessed_heads(8192, 8), _guessed_heads(2304, 8), _guessed_heads(1600, 1)
    (64, 24, 25)
    """
    widths = [width for width in HEAD_WIDTHS if hidden % width == 0]
    shared = next((hidden // width for width in widths if hidden // width % tp == 0), 0)
    return shared or hidden // (64 if hidden % 128 else 128) or 1


def _layers(cells: RowCells, gated: bool, ffn: int | None) -> int:
    """Layers that the published size leaves room for; only a dense model's can be told from it."""
    total, hidden = cells.number("params_b"), cells.need("hidden")
    if total is None or ffn is None or cells.size("experts"):
        raise Unusable("layers", "blank, and params_b cannot tell them; fill it in")
    layer_params = 4 * hidden**2 + (3 if gated else 2) * hidden * ffn
    return max(1, round((total * DECIMAL["G"] - cells.need("vocab") * hidden) / layer_params))


# software whose recipes leave multi-token prediction out: their published TFLOP/s reproduce to 0.4 % without it only
WITHOUT_MTP = ("maxtext", "nemo-automodel")
# every published model with latent attention has these but for the query latent
LATENT = MappingProxyType({"kind": "mla", "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128})
FAR = 0.12  # of params_b, which is often rounded
Table = JsonObject


def model_table(cells: RowCells, engine: str) -> Table:
    """The model of a row as `{"base": id, ...what differs}`, or as plain dimensions for a name nobody knows."""
    catalog_name = find_name(cells.text("model_name"))
    if catalog_name is not None:
        base = {**MODELS.table(catalog_name[0]), **catalog_name[1]}
        if _fits(base, cells):
            return {"base": catalog_name[0], **catalog_name[1], **_differences(base, cells, engine)}
        other = f"{catalog_name[0]} of the catalog is another architecture than the columns say"
        cells.note(f"model_name: {other}; not used")
    return _plain(cells)


def _fits(base: JsonMapping, cells: RowCells) -> bool:
    """Whether the catalog's model is of the kind the columns describe."""
    arch, experts = cells.text("arch"), cells.size("experts")
    sparse = any(isinstance(part.get("moe"), Mapping) for part in (base, *base.get("block", {}).values()))
    latent = _attention(base).get("kind") in ("mla", "compressed")  # both keep one latent a token
    if (arch == "dense" or experts == 0) and sparse:
        return False
    return not (arch == "mla_moe" and not latent)


def _attention(base: JsonMapping) -> JsonMapping:
    table = base.get("attention")
    return table if isinstance(table, Mapping) else {}


def _differences(base: JsonMapping, cells: RowCells, engine: str) -> Table:
    changes: Table = {}
    mtp = cells.size("x_mtp")
    if mtp is None and "mtp" in base:
        mtp = 0 if engine in WITHOUT_MTP else base["mtp"]
        cells.note(f"mtp = {mtp}: x_mtp is blank; as recipes of {engine} do")
    for key, row_value in (
        ("layers", cells.count("layers")),
        ("hidden", cells.count("hidden")),
        ("vocab", cells.count("vocab")),
        ("tied", cells.flag("x_tied")),
        ("mtp", mtp),
    ):
        if row_value is not None and row_value != base.get(key, 0):
            changes[key] = row_value
    positions, seq = base.get("positions", 0), cells.need("seq_len")
    if positions and seq != positions:
        changes["positions"] = seq
        cells.note(f"positions = {seq}: a learned position for each token of a sequence")
    parts = {"attention": _heads(base, cells), **_feed_forward(base, cells)}
    return changes | {name: part for name, part in parts.items() if part}


def _heads(base: JsonMapping, cells: RowCells) -> Table:
    """What differs in the attention: heads, kv_heads, head_dim."""
    below = _attention(base)
    heads, kv_heads, head_dim = cells.count("heads"), cells.count("kv_heads"), cells.count("x_head_dim")
    if below.get("kind", "attention") not in ("attention", "mla") or "heads" not in below:
        return {}
    changes: Table = {}
    if heads is not None and heads != below.get("heads"):
        changes["heads"] = heads
    if below.get("kind") == "mla":
        return changes
    if kv_heads is None and "heads" in changes and below.get("kv_heads", below["heads"]) == below["heads"]:
        kv_heads = heads
    if kv_heads is not None and kv_heads != below.get("kv_heads", below["heads"]):
        changes["kv_heads"] = kv_heads
    elif "heads" in changes and "kv_heads" not in below:
        changes["kv_heads"] = kv_heads or below["heads"]
    hidden = cells.count("hidden") or base["hidden"]
    width_per_head = base["hidden"] // below["heads"]
    if head_dim is None and below.get("head_dim", width_per_head) == width_per_head:
        head_dim = _split(hidden, heads or below["heads"])
    if head_dim is not None and head_dim != below.get("head_dim", width_per_head):
        changes["head_dim"] = head_dim
    return changes


def _feed_forward(base: JsonMapping, cells: RowCells) -> Table:
    """What differs in the dense feed-forward part and in the experts."""
    mlp, moe = base.get("mlp"), base.get("moe")
    ffn, is_gated = cells.count("ffn_hidden"), cells.flag("gated_mlp")
    experts = _experts(cells)
    changes: dict[str, Table] = {"mlp": {}, "moe": {}}
    if isinstance(mlp, Mapping):
        # a table of experts repeats their width as ffn_hidden where the model has no dense layer
        if ffn is not None and ffn != mlp.get("hidden") and ffn != experts.get("hidden"):
            changes["mlp"]["hidden"] = ffn
        if is_gated is not None and is_gated != mlp.get("gated", True):
            changes["mlp"]["gated"] = is_gated
    if isinstance(moe, Mapping):
        changes["moe"] = {key: value for key, value in experts.items() if value != moe.get(key, 0)}
        if moe.get("shared_hidden") and experts.get("shared_hidden") and "hidden" not in changes["moe"]:
            changes["moe"].pop("shared_hidden", None)  # counted in experts of another width; the catalog knows it
        if is_gated is not None and is_gated != moe.get("gated", True):
            changes["moe"]["gated"] = is_gated
    elif experts:
        changes["moe"] = experts | ({} if is_gated is None else {"gated": is_gated})
    return changes


def _experts(cells: RowCells) -> Table:
    """The mixture of experts the columns state; empty without one."""
    experts = cells.size("experts")
    if not experts:
        return {}
    width = cells.count("expert_ffn") or cells.count("ffn_hidden")
    table: Table = {"experts": experts}
    if cells.count("topk") is not None:
        table["topk"] = cells.count("topk")
    if width is not None:
        table["hidden"] = width
        shared = cells.size("shared_experts")
        if shared is not None:
            table["shared_hidden"] = shared * width
    return table


def _plain(cells: RowCells) -> Table:
    """A table of dimensions from the columns alone, for a model the catalog does not know."""
    name, arch = cells.text("model_name")[:60], cells.text("arch")
    if arch == "hybrid":
        expected_text = "expected a catalog model: no column holds a hybrid's layer pattern"
        raise Unusable("model_name", f"got {name!r}, {expected_text}")
    for column in ("hidden", "vocab"):
        if cells.count(column) is None:
            raise Unusable(column, f"blank, and model_name {name!r} is not in the catalog to supply it; fill it in")
    is_gated = cells.flag("gated_mlp")
    if is_gated is None:
        is_gated = True
        cells.note("gated_mlp = 1: blank in the table")
    experts = _experts(cells)
    older = not is_gated and not experts  # GPT-2 and its descendants
    gpt_style = "layer norms, biases and learned positions, as in GPT"
    style = gpt_style if older else "rms norms, no biases, rotary positions"
    cells.note(f"model {name!r} is not in the catalog: {style} assumed")
    tied = cells.flag("x_tied")
    cells = assumed_sizes(cells, is_gated)
    table: Table = {key: cells.need(key) for key in ("layers", "hidden", "vocab")}
    table |= {"name": name or "given", "tied": older if tied is None else tied, "mtp": cells.size("x_mtp") or 0}
    table["attention"] = _plain_attention(cells, arch, older)
    if experts:
        for key, column in (("topk", "topk"), ("hidden", "expert_ffn")):
            if key not in experts:
                raise Unusable(column, f"blank, with {experts['experts']} experts")
        table["moe"] = experts | {"gated": is_gated}
        return _match_parameters(table, cells)
    width = cells.count("ffn_hidden")
    if width is None:
        raise Unusable("ffn_hidden", f"blank, and model_name {name!r} is not in the catalog to supply it")
    table["mlp"] = {"hidden": width, "gated": is_gated, "bias": older, "activation": "silu" if is_gated else "gelu"}
    return _match_parameters(table | ({"norm": "layer", "positions": cells.need("seq_len")} if older else {}), cells)


def _match_parameters(table: Table, cells: RowCells) -> Table:
    """The table with what only the published size can tell: how many layers are dense, whether the head is tied."""
    billions, dense = cells.number("params_b"), cells.count("ffn_hidden")
    moe, tied = table.get("moe"), table["tied"]
    if billions is None:
        return table
    target = billions * DECIMAL["G"]
    try:
        excess = count(model(table)).total - target
        other_gap = count(model(table | {"tied": not tied})).total - target
    except InputError:
        return table  # told when the scenario is assembled
    if moe is not None and dense and dense != moe["hidden"]:
        wide = moe["experts"] * moe["hidden"] + moe.get("shared_hidden", 0) - dense
        expert_params = table["hidden"] * wide * (3 if moe["gated"] else 2)
        layers = min(table["layers"], round(excess / expert_params)) if expert_params > 0 else 0
        if layers > 0:
            cells.note(f"first {layers} layers dense: what params_b leaves; which ones they are is not in the columns")
            return table | {"first_dense": layers, "mlp": {"hidden": dense, "gated": moe["gated"]}}
    elif cells.flag("x_tied") is None and abs(excess) > FAR * target and abs(other_gap) < abs(excess):
        cells.note(f"tied = {not tied}: closer to params_b")
        return table | {"tied": not tied}
    return table


def _plain_attention(cells: RowCells, arch: str, older: bool) -> Table:
    heads, hidden = cells.need("heads"), cells.need("hidden")
    if arch == "mla_moe":
        rank = 1536 if hidden > 4096 else 0
        cells.note(f"latent attention: query rank {rank}, key-value rank 512, heads of 128 + 64, as in DeepSeek")
        return {**LATENT, "heads": heads, "q_rank": rank}
    head_dim = cells.count("x_head_dim") or _split(hidden, heads)
    if head_dim is None:
        raise Unusable("x_head_dim", f"blank, and {heads} heads do not divide hidden ({hidden})")
    kv_heads = cells.count("kv_heads")
    if kv_heads is None:
        kv_heads = heads
        cells.note(f"kv_heads = {heads}: blank in the table")
    biases = {"positions": "learned", "qkv_bias": True, "out_bias": True} if older else {}
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **biases}


def _split(hidden: int, heads: int) -> int | None:
    return hidden // heads if hidden % heads == 0 else None
