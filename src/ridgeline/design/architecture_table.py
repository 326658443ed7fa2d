"""Turn the [architectures] table of a study into the shapes to compare, and how they are trained and served.

[architectures]
law = "besiroglu2024"
base = "llama3-8b"                       # what a shape does not say is as there
target = { params = "8e9", tokens = "4e11" }   # quality: as a model of this size on so many tokens; or loss = 2.05
serve_tokens = "1e13"                    # expected over its life
train = { system = "256xh100-sxm", seq = 4096, global_batch = 1024, plan = { dp = 256, shard = "zero2" } }
serve = { system = "1xh100-sxm", context = 4096, batch = 32, plan = { engine = "vllm" } }

[architectures.shape]                    # every combination that divides
layers = [24, 32, 40]
hidden = [3072, 4096, 5120]
ffn_ratio = [2.67, 3.5]
kv_heads = [8]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import product

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.design.architecture_answer import RefusedShape
from ridgeline.design.laws import DEFAULT, LossLaw, law
from ridgeline.design.study import nothing
from ridgeline.models.load import model as load_model
from ridgeline.models.params import count as count_params
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import scenario as scenario_of

SHAPE_KEYS = (
    "layers",
    "hidden",
    "ffn_ratio",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "attention",
    "experts",
    "topk",
    "granularity",
)
MOST_SHAPES = 4096
TILE = 128  # columns that products are cut into
ASPECT = (16.0, 256.0)  # width over layers in which loss hardly depends on it: Kaplan et al. 2020, figure 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureTable:
    """The table as written."""

    law: str = DEFAULT
    base: str = "llama3-8b"
    target: Mapping[str, object] = field(default_factory=nothing)
    serve_tokens: str = "0"
    train: Mapping[str, object] = field(default_factory=nothing)
    serve: Mapping[str, object] = field(default_factory=nothing)
    shape: Mapping[str, object] = field(default_factory=nothing)
    tolerance: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One candidate: what was chosen, and the model."""

    name: str
    choices: Mapping[str, float]
    model: ModelSpec
    params: float
    active_params: float
    granularity: float
    words: Mapping[str, str]


def read_architectures(table: JsonMapping) -> tuple[ArchitectureTable, LossLaw, float]:
    """The table, its law, and the loss that all candidates have to reach."""
    read = decode(ArchitectureTable, table, "architectures")
    chosen = law(read.law)
    return read, chosen, target_loss(read, chosen)


def target_loss(read: ArchitectureTable, chosen: LossLaw) -> float:
    """The loss asked for: given, or of a reference model."""
    target = read.target
    if "loss" in target:
        return count("target.loss", target["loss"])
    if not {"params", "tokens"} <= set(target):
        expectation = "loss, or params and tokens of a model whose quality is wanted"
        raise InputError(Problem(path="architectures.target", given=repr(dict(target))[:60], expected=expectation))
    params, tokens = (count(f"target.{name}", target[name]) for name in ("params", "tokens"))
    reasons = [*chosen.outside(params, tokens)]
    if reasons:
        expectation = "a reference model inside the law's support"
        raise InputError(Problem(path="architectures.target", given="; ".join(reasons), expected=expectation))
    return float(chosen.loss(params, tokens))


def count(path: str, value: object) -> float:
    """A plain number, also as a string such as 4e11."""
    try:
        number = float(str(value))
    except ValueError:
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise InputError(
            Problem(path=f"architectures.{path}", given=repr(value)[:60], expected="a number such as 4e11")
        )
    return number


def shapes(read: ArchitectureTable) -> tuple[list[ModelShape], list[RefusedShape]]:
    """Every combination of the table that divides, and those that do not with the reason."""
    lists = {key: _list(key, value) for key, value in read.shape.items()}
    total = 1
    for entries in lists.values():
        total *= len(entries)
    if not lists or total > MOST_SHAPES:
        expectation = f"lists of {', '.join(SHAPE_KEYS)}; at most {MOST_SHAPES} shapes"
        raise InputError(
            Problem(path="architectures.shape", given=f"{total if lists else 0} shapes", expected=expectation)
        )
    base = load_model(read.base)
    shapes_made: dict[tuple[object, ...], ModelShape] = {}  # a choice that changes nothing makes no second model
    refusals: list[RefusedShape] = []
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        name = ", ".join(
            f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {value}" for key, value in chosen.items()
        )
        try:
            shape = _shape(name, chosen, base, read.base)
        except InputError as wrong:
            refusals.append(RefusedShape(name=name, reason=str(wrong.problems[0])))
            continue
        shapes_made.setdefault((shape.model.blocks, shape.model.layers, shape.model.hidden, shape.model.vocab), shape)
    return [*shapes_made.values()], refusals


def _list(key: str, value: object) -> list[object]:
    if key not in SHAPE_KEYS:
        expectation = ", ".join(SHAPE_KEYS)
        raise InputError(Problem(path=f"architectures.shape.{key}", given=key[:40], expected=f"one of {expectation}"))
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _shape(name: str, chosen: Mapping[str, object], base: ModelSpec, id: str) -> ModelShape:
    table = dict(_dimensions(chosen, base))
    model = load_model({"base": id, **table})
    aspect = model.hidden / model.layers
    if not ASPECT[0] <= aspect <= ASPECT[1]:
        expectation = f"{ASPECT[0]:g} to {ASPECT[1]:g}, where loss depends on size and not on shape"
        raise InputError(Problem(path="shape", given=f"width over layers {aspect:.3g}", expected=expectation))
    param_count = count_params(model)
    numbers = {key: float(value) for key, value in chosen.items() if isinstance(value, (int, float))}
    words = {key: str(value) for key, value in chosen.items() if not isinstance(value, (int, float))}
    return ModelShape(
        name=name,
        choices=numbers,
        model=model,
        params=float(param_count.total),
        active_params=float(param_count.active),
        granularity=numbers.get("granularity", 1.0),
        words=words,
    )


def _dimensions(chosen: Mapping[str, object], base: ModelSpec) -> Iterator[tuple[str, object]]:
    """The table of dimensions of a shape; what does not divide is refused."""
    hidden = _whole(chosen, "hidden", base.hidden)
    head = _whole(chosen, "head_dim", 128)
    _divides("hidden", hidden, head)
    heads = _whole(chosen, "heads", hidden // head)
    kv = _whole(chosen, "kv_heads", min(8, heads))
    _divides("heads", heads, kv)
    yield "hidden", hidden
    for key in ("layers", "vocab"):
        if key in chosen:
            yield key, _whole(chosen, key, 0)
    yield "attention", _attention(str(chosen.get("attention", "gqa")), (hidden, heads, kv, head))
    yield _feed_forward(chosen, round(hidden * _real(chosen, "ffn_ratio", 3.5) / TILE) * TILE)


def _attention(kind: str, sizes: tuple[int, int, int, int]) -> JsonObject:
    """The table of a mixer from width, heads, key-value heads and the size of a head."""
    hidden, heads, kv, head = sizes
    if kind == "mla":
        ranks = {"q_rank": hidden // 4 // TILE * TILE, "kv_rank": 512}
        return {"kind": "mla", "heads": heads, **ranks, "nope_dim": head, "rope_dim": 64, "v_dim": head}
    if kind not in ("gqa", *WINDOWS):
        raise InputError(Problem(path="attention", given=kind[:40], expected="gqa, window or mla"))
    return {"kind": "attention", "heads": heads, "kv_heads": kv, "head_dim": head, **WINDOWS.get(kind, {})}


def _feed_forward(chosen: Mapping[str, object], ffn: int) -> tuple[str, JsonObject]:
    """The table of a dense layer, or of experts that are so many times narrower as their granularity says."""
    if "experts" not in chosen:
        return "mlp", {"hidden": ffn}
    granularity = _real(chosen, "granularity", 1)
    experts, topk = (_whole(chosen, key, usual) for key, usual in (("experts", 8), ("topk", 1)))
    width = round(ffn / granularity / TILE) * TILE
    if width < TILE:
        narrow = f"experts of width {ffn / granularity:.0f}"
        raise InputError(Problem(path="granularity", given=narrow, expected=f"at least {TILE}"))
    return "moe", {"experts": round(experts * granularity), "topk": round(topk * granularity), "hidden": width}


WINDOWS: Mapping[str, JsonObject] = {"window": {"window": 4096}}


def _real(chosen: Mapping[str, object], key: str, usual: float) -> float:
    """A number of a shape; what is none, or not above 0, is refused."""
    value = chosen.get(key, usual)
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
    if not 0 < number < BIGGEST:
        raise InputError(Problem(path=key, given=repr(value)[:40], expected="a number above 0"))
    return number


def _whole(chosen: Mapping[str, object], key: str, usual: float) -> int:
    """A whole number of a shape, above 0."""
    number = _real(chosen, key, usual)
    if number != int(number):
        raise InputError(Problem(path=key, given=f"{number:g}", expected="a whole number above 0"))
    return int(number)


BIGGEST = 1e9  # of any size of a model


def _divides(name: str, whole: int, part: int) -> None:
    if part < 1 or whole % part:
        raise InputError(Problem(path=name, given=f"{whole} over {part}", expected="a whole number"))


def training_scenario(shape: ModelShape, read: ArchitectureTable) -> Scenario:
    """The training step of a shape."""
    return _scenario(shape, {"kind": "train", "seq": 4096, "global_batch": 1024}, read.train, "train")


def serving_scenario(shape: ModelShape, read: ArchitectureTable) -> Scenario | None:
    """The decode step of a shape; None where the study does not say how it is served."""
    if not read.serve:
        return None
    return _scenario(shape, {"kind": "decode", "context": 4096, "batch": 32}, read.serve, "serve")


def _scenario(shape: ModelShape, usual: JsonObject, given: JsonMapping, path: str) -> Scenario:
    entries = dict(given)
    if "system" not in entries:
        raise InputError(
            Problem(path=f"architectures.{path}.system", given="nothing", expected="a system such as 256xh100-sxm")
        )
    plan, system = entries.pop("plan", {}), entries.pop("system")
    return scenario_of({"model": shape.model, "system": system, "plan": plan, "workload": {**usual, **entries}})
