"""Tables of dimensions: patterns, inheritance, and every wrong table is an InputError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.errors import InputError
from ridgeline.models.dimensions import PARTS, Dimensions, read_dimensions
from ridgeline.models.spec import Attention, Mamba2, Mlp, Moe, Mtp

SMALL: dict[str, Any] = {
    "hidden": 64,
    "layers": 6,
    "vocab": 100,
    "attention": {"heads": 4, "kv_heads": 2},
    "mlp": {"hidden": 128},
}


def test_defaults() -> None:
    spec = read_dimensions("x", {**SMALL, "attention": {"heads": 4}})
    assert spec.layer(0).mixer == Attention(heads=4, kv_heads=4, head_dim=16)
    assert spec.layer(0).ffn == Mlp(hidden=128)
    assert (spec.layers, len(spec.blocks), spec.counts()[0][1]) == (6, 1, 6)


def test_pattern_is_repeated_and_cut() -> None:
    blocks = {"local": {"attention": {"window": 16}}, "global": {}}
    spec = read_dimensions("x", {**SMALL, "pattern": ["local*2", "global"], "layers": 7, "block": blocks})
    assert spec.order == (0, 0, 1, 0, 0, 1, 0)
    assert isinstance(spec.blocks[0].mixer, Attention)
    assert (spec.blocks[0].mixer.window, spec.blocks[0].mixer.kv_heads) == (16, 2)  # the rest is inherited


def test_a_block_may_change_the_kind_or_leave_a_part_out() -> None:
    blocks = {
        "m": {"attention": {"kind": "mamba2", "heads": 8, "head_dim": 16, "state": 32}, "mlp": False},
        "f": {"attention": False, "norms": 1},
    }
    spec = read_dimensions("x", {**SMALL, "pattern": ["m", "f"], "block": blocks})
    assert isinstance(spec.blocks[0].mixer, Mamba2)
    assert spec.blocks[0].ffn is None
    assert (spec.blocks[1].mixer, spec.blocks[1].norms) == (None, 1)


def test_first_dense() -> None:
    spec = read_dimensions("x", {**SMALL, "moe": {"experts": 8, "topk": 2, "hidden": 32}, "first_dense": 2})
    assert [type(spec.layer(index).ffn) for index in range(4)] == [Mlp, Mlp, Moe, Moe]


def test_mtp_repeats_the_last_layer_or_the_block_it_names() -> None:
    blocks = {"local": {"attention": {"window": 16}}, "global": {}, "ahead": {"attention": {"window": 8}, "norms": 3}}
    table = {**SMALL, "mtp": 2, "pattern": ["local", "global"], "block": blocks}
    last, named = read_dimensions("x", table), read_dimensions("x", {**table, "mtp_block": "ahead"})
    assert last.mtp == Mtp(depth=2, block=last.layer(5))
    assert named.mtp is not None
    assert named.mtp.depth == 2
    assert isinstance(named.mtp.block.mixer, Attention)
    assert (named.mtp.block.mixer.window, named.mtp.block.norms) == (8, 3)
    assert (named.blocks, named.order) == (last.blocks, last.order)  # a block for prediction alone is no layer
    used = read_dimensions("x", {**table, "mtp_block": "local"})
    assert used.mtp == Mtp(depth=2, block=last.layer(0))
    assert read_dimensions("x", {**table, "mtp_block": "ahead", "mtp": 0}).mtp is None  # as a variant may ask
    moe = {"experts": 8, "topk": 2, "hidden": 32}
    cut = read_dimensions("x", {**table, "moe": moe, "first_dense": 6, "mtp_block": "ahead"})
    assert cut.mtp is not None
    assert isinstance(cut.mtp.block.ffn, Moe)  # dense layers come first, prediction last


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"hidden": "wide"}, "hidden"),
        ({"layers": 10**8}, "layers"),
        ({"layers": 1e8}, "layers"),
        ({"first_dense": "x"}, "first_dense"),
        ({"block": 3}, "block"),
        ({"block": {"local": 5}}, "block"),
        ({"pattern": ["a"]}, "pattern"),
        ({"pattern": ["a*-1"]}, "pattern"),
        ({"pattern": ["a*0"], "block": {"a": {}}}, "pattern"),
        ({"mtp": 1, "mtp_block": "ahead"}, "mtp_block"),
        ({"mtp": 1, "mtp_block": "ahead", "block": {"next": {}}}, "mtp_block"),
        ({"mtp_block": "ahead"}, "mtp_block"),
        ({"mtp": 1, "mtp_block": ["next"], "block": {"next": {}}}, "mtp_block"),
        ({"mtp": 1, "mtp_block": "next", "block": {"next": {"mlp": {"hidden": 0}}}}, "mlp.hidden"),
        ({"pattern": "a"}, "pattern"),
        ({"attention": {"heads": 4, "kv_heads": 3}}, "attention.kv_heads"),
        ({"attention": {"heads": 5}}, "attention.head_dim"),  # 64 / 5 is not whole
        ({"attention": {"kind": "linear"}}, "attention.kind"),
        ({"moe": {"experts": 4, "topk": 8, "hidden": 8}}, "moe.topk"),
        ({"attention": False, "mlp": False}, "attention"),
        ({"hiden": 3}, "hiden"),
    ],
)
def test_wrong_tables_name_the_key(change: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError) as caught:
        read_dimensions("x", {**SMALL, **change})
    assert path in [problem.path for problem in caught.value.problems]


KEYS = [*PARTS, "block", "heads", "kind", *Dimensions.__dataclass_fields__]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**60)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["mla", "moe"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_nothing_but_input_errors(change: dict[str, Any]) -> None:
    try:
        read_dimensions("x", {**SMALL, **change})
    except InputError as wrong:
        assert wrong.problems  # noqa: PT017
