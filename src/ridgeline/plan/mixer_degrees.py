"""Which tensor and context degrees a model's sequence mixers can have: what ranks split must come out even."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from ridgeline.core.errors import Problem
from ridgeline.models.recurrent import WHOLE
from ridgeline.models.spec import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    Recurrence,
)


def divides(path: str, value: int, total: int, what: str) -> Iterator[Problem]:
    """A problem unless `value` divides `total`; proposes the nearest values that would."""
    if total % value:
        good = [part for part in range(1, min(total, 4 * value) + 1) if total % part == 0]
        below, above = [part for part in good if part < value], [part for part in good if part > value]
        near = [str(part) for part in (*below[-1:], *above[:1])]
        yield Problem(
            path=path, given=str(value), expected=f"a divisor of {what} ({total})", todo=f"use {' or '.join(near)}"
        )


def split_heads(mixer: Mixer, tp: int) -> Iterator[Problem]:
    """What tensor ranks split of a mixer must come out even; keys, groups and key heads may be replicated instead."""
    match mixer:
        case Attention():
            yield from divides("plan.tp", tp, mixer.heads, "attention heads")
            yield from _either("plan.tp", tp, mixer.kv_heads, "key-value heads")
        case LatentAttention():
            yield from divides("plan.tp", tp, mixer.heads, "attention heads")
        case Mamba2():
            yield from divides("plan.tp", tp, mixer.heads, "state-space heads")
            yield from _either("plan.tp", tp, mixer.groups, "state-space groups")
        case GatedDeltaNet():
            yield from divides("plan.tp", tp, mixer.value_heads, "value heads")
            yield from _either("plan.tp", tp, mixer.key_heads, "key heads")
        case CompressedAttention():
            yield from divides("plan.tp", tp, mixer.o_groups, "groups of the output projection")
        case Recurrence():
            if mixer.form in WHOLE and tp > 1:
                yield _unsplit("plan.tp", tp, mixer)
            else:
                yield from divides("plan.tp", tp, mixer.heads, f"{mixer.form} heads")
        case _:
            assert_never(mixer)


def whole(path: str, degree: int, captured: bool) -> Problem:
    """What is known op by op and in which tokens see each other has no form that ranks share."""
    why = "the model was captured, and how ranks would share" if captured else "no framework has ranks share"
    told = " could not be told" if captured else ""
    expected = f"1: {why} a mixer of its layers{told}"
    return Problem(path=path, given=str(degree), expected=expected, todo="use dp, sharding, pp or ep")


def _unsplit(path: str, degree: int, mixer: Recurrence) -> Problem:
    """A recurrence that no framework runs on several ranks."""
    expected = f"1: no framework splits a {mixer.form} recurrence over such ranks"
    return Problem(path=path, given=str(degree), expected=expected, todo="use dp, sharding, pp or ep")


def _either(path: str, degree: int, total: int, what: str) -> Iterator[Problem]:
    """Split evenly, or replicate evenly: one must divide the other."""
    if total % degree and degree % total:
        yield Problem(path=path, given=str(degree), expected=f"a divisor or a multiple of {what} ({total})")


def traded_heads(mixers: Iterable[Mixer], tp: int, cp: int, exchanged: bool) -> Iterator[Problem]:
    """Context ranks of state-space and delta-rule layers trade heads for sequence, and those of attention where
    `exchanged` says so (all-to-all); other recurrences have no context ranks."""
    for mixer in mixers:
        match mixer:
            case Attention() | LatentAttention() | CompressedAttention():
                heads = mixer.heads if exchanged else 0
                what, todo = "attention heads ({}), which all-to-all exchanges", 'use cp_kind = "ring"'
            case Mamba2() | GatedDeltaNet():
                heads = mixer.heads if isinstance(mixer, Mamba2) else mixer.value_heads
                what, todo = "the heads of recurrent layers ({}), which they exchange for sequence", "use less cp"
            case Recurrence():
                yield _unsplit("plan.cp", cp, mixer)
                return
            case _:
                assert_never(mixer)
        if heads % (tp * cp):
            expected = f"tp x cp to divide {what.format(heads)}"
            yield Problem(path="plan.cp", given=f"tp {tp} x cp {cp}", expected=expected, todo=todo)
