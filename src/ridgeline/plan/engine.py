"""Turn the name of a software that trains or serves into what it fuses, overlaps and supports: an Engine, as data.

The vocabularies below are closed: an engine file that uses another word is refused, so that whoever prices a plan can
match on them. What an engine does *by default* is here; a plan may switch it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from ridgeline.core.catalog import Catalog
from ridgeline.core.documents import JsonMapping
from ridgeline.core.dtype import ALIASES, DTYPES, DType, dtype
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.evidence import Evidence
from ridgeline.core.files import SUFFIXES, read_layers
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, decode
from ridgeline.hardware.load import merge
from ridgeline.hardware.system import System
from ridgeline.ir.fusions import FUSIONS
from ridgeline.plan.mesh import ORDERS, Order
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.serving_plan import Serves

OVERLAPS: Mapping[str, str] = MappingProxyType(
    {
        "grad-reduce": "data-parallel gradient reduction runs beside the backward pass",
        "param-gather": "sharded parameters are gathered beside compute",
        "tp": "tensor-parallel collectives run beside their matrix products",
        "pp": "pipeline sends run beside compute",
        "cp": "context-parallel exchange runs beside attention",
        "moe": "expert dispatch and combine run beside compute of another microbatch",
        "offload": "copies to and from host memory run beside compute",
    }
)
Shard = Literal["none", "zero1", "zero2", "zero3"]
RecomputeKind = Literal["none", "selective", "full"]
Dispatch = Literal["all-to-all", "deepep", "hybridep"]
ExpertLaunch = Literal["grouped", "multi-stream", "sequential"]
RecomputePart = Literal["attention", "norm", "activation", "mlp", "moe", "mixer", "latent-up", "alternate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How work reaches the chip.

    mode   eager: the host issues every op; compiled: fewer, fused kernels issued by the host; graph: kernels are
           replayed from a captured graph; xla: one compiled program per step
    """

    mode: Literal["eager", "compiled", "graph", "xla"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What the software can be told to do beyond its habits: the values that a plan's switches may take.

    The search takes the dispatcher and the overlap of expert dispatch; the rest is named as what a feature would gain.
    """

    moe_dispatch: Annotated[tuple[Dispatch, ...], Doc("expert dispatchers it has")] = ("all-to-all",)
    overlaps: Annotated[tuple[str, ...], Doc("what it overlaps only where told to")] = ()
    moe_beside: Annotated[
        tuple[str, ...], Doc("schedules under which it overlaps expert dispatch where told to; none named: all")
    ] = ()
    graph: Annotated[tuple[Literal["partial", "full"], ...], Doc("CUDA graphs it can replay")] = ()
    order: Annotated[tuple[Order, ...], Doc("rank orders it can be told")] = ORDERS[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supports:
    """What the software can be asked to do."""

    schedules: tuple[str, ...] = ()
    shard: tuple[Shard, ...] = ("none",)
    recompute: tuple[RecomputeKind, ...] = ("none",)
    axes: tuple[Literal["tp", "sp", "pp", "dp", "cp", "ep", "etp"], ...] = ("dp",)
    precision: tuple[str, ...] = ("fp32", "bf16")
    offload: tuple[Literal["activations", "optimizer"], ...] = ()
    selective: Annotated[
        tuple[tuple[RecomputePart, ...], ...], Doc("parts that selective recompute takes together, a set each")
    ] = (("attention",), ("attention", "activation"))
    selective_in_experts: Annotated[tuple[RecomputePart, ...], Doc("parts it takes in experts only")] = ()
    norms_in_products: Annotated[
        bool, Doc("norms run inside the product that follows, save before experts and latents: no recompute of those")
    ] = False
    recompute_layers: Annotated[
        Literal["all", "each", "any"], Doc("layers it recomputes: all, the first of each stage (full), or any by stage")
    ] = "all"
    shard_with_pp: Annotated[
        tuple[Shard, ...], Doc("sharding that goes with pipeline stages; none named: all of shard")
    ] = ()
    vendors: Annotated[tuple[str, ...], Doc("vendors whose chips it runs on; none named: any")] = ()
    experts_split_tokens: Annotated[
        bool, Doc("experts beside tensor ranks need sequence parallelism: the software asserts it")
    ] = False
    one_node: Annotated[bool, Doc("a script and no trainer: offered for the chips of one node alone")] = False
    features: Features = Features()

    @property
    def pipelined_shard(self) -> tuple[Shard, ...]:
        """Sharding that is known to go with pipeline stages."""
        return self.shard_with_pp or self.shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """What the software holds of activations beyond, or short of, what its ops need.

    Inferred from the peaks of seven runs on one H200 (truth rows h200-*), which therefore cannot judge it.

    attention_twice   attention hands its output on in another layout than it saves: both stay
    inputs_wide       inputs of narrow products are cast again in the backward and saved wide
    stage_inputs_freed   the input of a virtual stage is deallocated once its first norm has saved what it needs
    loss_bytes        bytes a value of the logits takes at the worst moment of the loss; absent: 10, or 6 where the
                      loss is fused. Megatron's vocab-parallel loss holds the logits as stored and in 32 bits, where it
                      works in place (6); an eager loss casts to 32 bits and holds log-probabilities and two gradients
                      (12); a compiled one holds the logits and their gradient as stored (4)
    """

    attention_twice: bool = False
    inputs_wide: bool = False
    loss_bytes: Annotated[float | None, AtLeast(0)] = None
    stage_inputs_freed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """What ranks send in the software's own way. Read from its code, and so far told of engines whose ranks were traced
    (`ridgeline run --dry`); Megatron's fused habits are what stands where nothing is said.

    inputs_kept        gathered inputs of column-parallel products stay for the backward: they are not gathered again
    ends               vocabulary-parallel embedding, logits and loss are counted with the collectives around them
    beside_products    the backward gathers inputs again beside the product of their gradient, and sums or scatters that
                       gradient beside the product of weights, without being told to
    boundary_whole     without sequence parallelism each tensor rank sends a stage's whole output, not its share
    experts_gathered   ranks of one expert (etp) gather their tokens before routing, and add up what they made
    reduces_each       zero2 reduces gradients after every microbatch
    hybrid             zero1 and zero2 shard over `shard_degree` ranks as zero3 does, and reduce among their replicas
    stage_gathered     zero3 under a pipeline gathers a stage's weights once a step and reduces its gradients once
    """

    inputs_kept: bool = False
    ends: bool = False
    beside_products: bool = False
    boundary_whole: bool = True
    experts_gathered: bool = False
    reduces_each: bool = False
    hybrid: bool = False
    stage_gathered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One software that trains or serves: defaults and abilities, with where that is known from."""

    id: str
    name: str
    family: Annotated[str, Doc("software it shares its core with")] = ""
    calibrated_as: Annotated[str, Doc("id its measured runs were fitted under; a copy keeps it; absent: its own")] = ""
    source: Annotated[str, Doc("documentation or code this was read from, with its version")]
    evidence: Evidence
    launch: Launch
    supports: Supports
    attention: Literal["flash", "unfused"] = "flash"
    kernel: Annotated[
        Literal["cudnn", "flash-2", "triton", "xla", "other"], Doc("library its flash attention comes from")
    ] = "other"
    gradients: Annotated[DType, Doc("dtype gradients are accumulated and reduced in")] = dtype("fp32")
    fp16_gradients: Annotated[DType | None, Doc("the same where a plan trains in fp16; absent: as in bf16")] = None
    fuses: tuple[str, ...] = ()
    compiles_for: Annotated[
        tuple[str, ...], Doc("vendors for whose chips it compiles chains of pointwise ops; elementwise in fuses: all")
    ] = ()
    overlaps: tuple[str, ...] = ()
    sends_beside: Annotated[tuple[str, ...], Doc("schedules under which pipeline sends overlap; none named: all")] = ()
    availability: Annotated[
        Literal["public", "closed", "retired"],
        Doc("public; closed: of its owners alone; retired: nobody starts with it"),
    ] = "public"
    default_for: Annotated[tuple[str, ...], Doc("vendors whose chips it is the default for; * the rest")] = ()
    expert_launch: Annotated[
        ExpertLaunch | None,
        Doc("kernels of local experts: grouped (one), multi-stream (cuBLAS in a loop) or sequential (a module each)"),
    ] = None
    update_kernel: Annotated[
        Literal["torch", "streaming"], Doc("its AdamW: as fast as torch's fused one, or as memory reads and writes")
    ] = "torch"
    saves: Annotated[Saves, Doc("what it holds of activations in its own way")] = Saves()
    exchanges: Annotated[Exchanges, Doc("what its ranks send in their own way")] = Exchanges()
    recompute_stops: Annotated[
        bool, Doc("recompute ends with the last tensor that the backward reads (torch's early stop)")
    ] = False
    vocab_multiple: Annotated[Count, Doc("the vocabulary is padded to a multiple of this times tp")] = 1
    narrow_dispatch: Annotated[
        bool, Doc("tokens are dispatched to experts in the narrow format of their products; combined as stored")
    ] = False
    width_sharded: Annotated[
        bool, Doc("activations between layers are sharded over tp by width, as GSPMD annotations do; not by tokens")
    ] = False
    keys_gathered: Annotated[
        bool, Doc("context ranks all-gather keys and values before attention, where a plan says ring")
    ] = False
    serves: Annotated[Serves | None, Doc("how it serves; absent: it trains")] = None
    notes: str = ""

    @property
    def fitted_id(self) -> str:
        """The id under which calibrations and residuals know it."""
        return self.calibrated_as or self.id

    def problems(self) -> Iterable[Problem]:
        for key, words, vocabulary in (
            ("fuses", self.fuses, FUSIONS),
            ("overlaps", self.overlaps, OVERLAPS),
            ("supports.schedules", self.supports.schedules, SCHEDULES),
            ("sends_beside", self.sends_beside, SCHEDULES),
            ("supports.features.overlaps", self.supports.features.overlaps, OVERLAPS),
            ("supports.features.moe_beside", self.supports.features.moe_beside, SCHEDULES),
            ("supports.precision", self.supports.precision, (*DTYPES, *ALIASES)),
        ):
            for word in words:
                if word not in vocabulary:
                    yield not_among(key, word, vocabulary)


def read_engine(id: str, table: JsonMapping, path: str = "") -> Engine:
    """The engine a TOML table describes, or an `InputError` with everything wrong in it."""
    fields_ = {key: value for key, value in table.items() if key != "aliases"}
    return decode(Engine, {"id": id, **fields_}, path)


ENGINES: Catalog[Engine] = Catalog("engine", Path(__file__).parent / "engines", read_engine)


@cache
def _defaults() -> Mapping[str, str]:
    """vendor -> the engine whose file names it in `default_for`; no two may name the same."""
    defaults: dict[str, str] = {}
    for id in ENGINES.with_key("default_for"):
        for vendor in ENGINES[id].default_for:
            if vendor in defaults:
                raise InputError(f"engines {defaults[vendor]} and {id} both are default_for {vendor!r}")
            defaults[vendor] = id
    return MappingProxyType(defaults)


def default_engine(system: System | None) -> str:
    """The id of the software that a system's chips are trained with unless another is named; None: any system's.

    >>> from ridgeline.hardware.load import system
    >>> default_engine(system("64xtpu-v5p")), default_engine(system("64xh100-sxm"))
    ('maxtext', 'megatron-core')
    """
    defaults = _defaults()
    return defaults.get(system.chip.vendor if system else "*", defaults["*"])


def default_engine_note(system: System | None) -> str:
    """The assumption that goes with a default engine: which one, and why that one.

    >>> from ridgeline.hardware.load import system
    >>> default_engine_note(system("64xtpu-v5p"))
    "engine = maxtext: not given; the default for Google's chips"
    """
    id, vendor = default_engine(system), system.chip.vendor if system else ""
    reason = f"the default for {vendor}'s chips" if vendor in _defaults() else "the default"
    return f"engine = {id}: not given; {reason}"


def engine(ref: str | Path | JsonMapping) -> Engine:
    """An engine by id or alias, by TOML file, or by table; `base = ID` starts a table from a catalog entry.

    >>> engine({"base": "megatron-core", "overlaps": ["tp"]}).overlaps, engine("mcore").id
    (('tp',), 'megatron-core')
    """
    if isinstance(ref, Mapping):
        table = dict(ref)
        base = table.pop("base", None)
        if base is None:
            return read_engine(str(table.pop("id", "custom")), table, "engine")
        base_engine = ENGINES[str(base)]
        if not table:
            return base_engine
        return read_engine(str(table.pop("id", base_engine.id)), merge(ENGINES.table(base_engine.id), table), "engine")
    if isinstance(ref, Path) or ref.endswith(SUFFIXES):
        return engine({"id": Path(ref).stem, **read_layers(Path(ref), merge).data})
    return ENGINES[ref]
