"""Number formats of a plan, and how data-parallel ranks share state: what every role of a job decides for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from ridgeline.core.dtype import ALIASES, DTYPES, DType, dtype
from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Doc
from ridgeline.plan.engine import Shard

NARROW = frozenset({"fp8", "fp4", "int8", "int4"})  # computed in, but not what weights and activations rest in


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How data-parallel ranks share state.

    zero1 shards optimizer states, zero2 gradients too, zero3 weights too. A degree below all data-parallel ranks
    (dp x cp) is hybrid sharding: shards are replicated over the rest.
    """

    shard: Annotated[Shard, Doc("what data-parallel ranks share: none, zero1, zero2, zero3")] = "none"
    shard_degree: Annotated[Count | None, Doc("ranks one shard is split over; absent: all data-parallel ranks")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats: of matrix products, of what is stored, and of what is reduced.

    gradients   accumulated and reduced in; absent: as the engine does
    scaling     what shares a scale in a narrow format: the tensor, a row, or a block
    kv          of the key-value cache
    """

    compute: DType = dtype("bf16")
    weights: DType = dtype("bf16")
    activations: DType = dtype("bf16")
    gradients: DType | None = None
    kv: DType = dtype("bf16")
    scaling: Literal["tensor", "row", "block"] | None = None


def precision_table(value: object) -> object:
    """`"fp8"`, or `{ name = "fp8", gradients = "bf16" }`: a name fills in what the table leaves out."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or "name" not in table:
        return table
    name = table["name"]
    parts = {key: part for key, part in table.items() if key != "name"}
    if not isinstance(name, str) or ALIASES.get(name, name) not in DTYPES:
        return {"compute": name, **parts}
    storage = "bf16" if dtype(name).peak in NARROW else "fp32" if name == "tf32" else name
    return {"compute": name, "weights": storage, "activations": storage, "kv": storage, **parts}
