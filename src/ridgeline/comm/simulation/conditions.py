"""What a simulated network is like beside its graph: path choice, background traffic, stragglers, caps and costs.

    paths        shortest   the way `routes` gives, always the same         ecmp   one of the equal ways, by a hash
                 spray      all equal ways at once, packet by packet        rail   by the sender's place: its own rail
    background   rate that others take away on the way between two nodes, or a share of every link between switches
    stragglers   a rank whose links are slower by a factor, or that begins late

`FRAMING` is the share of a link that payload gets (headers, start-up): 15 senders to one took 2467 us in a packet
simulator (htsim, NDP, 4 KB packets) where the bytes alone take 2400. `SPRAYED` is what is left of a link between
switches when packets are sprayed over all ways: a permutation of 2 MB over 1024 nodes took 186.9 us, not 160. Both are
fitted to one figure each and count only where asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypedDict, Unpack, get_args

import numpy as np

from ridgeline.comm.graph import Graph, refusal
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, not_among
from ridgeline.core.units import parse_quantity

PathChoice = Literal["shortest", "ecmp", "spray", "rail"]
Sharing = Literal["auto", "max-min", "rounds"]
PATH_CHOICES: tuple[str, ...] = get_args(PathChoice)
SHARINGS: tuple[str, ...] = get_args(Sharing)
FRAMING = 0.973
SPRAYED = 0.88
LEFT = 0.02  # of a link, whatever background takes
_PAIR = re.compile(r"(\d{1,8})-(\d{1,8}):(.+)")
_SHARE = re.compile(r"(\d{1,2}(?:\.\d{1,6})?) ?%")
_STRAGGLER = re.compile(r"(\d{1,8}):(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Traffic of others: between two nodes at a rate, or (source -1) a share of every link between switches."""

    source: int = -1
    target: int = -1
    bytes_per_s: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How flows choose paths, and what slows them.

    slower, late       ranks whose links are slower by a factor; ranks that begin after so many seconds
    injection          bytes per second that a rank sends, and gets, at most; None: what its links carry
    message_s          what each message costs beside the latency of its way
    framing, sprayed   shares of a link that payload gets, see the module
    sharing            max-min rates from moment to moment, or bytes of a round on a link (`message_rounds`); auto: the
                       second for many messages that share links
    """

    paths: PathChoice = "ecmp"
    seed: int = 0
    background: tuple[Background, ...] = ()
    slower: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    late: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    injection: float | None = None
    message_s: float = 0.0
    framing: float = 1.0
    sprayed: float = 1.0
    sharing: Sharing = "auto"


class NetworkOptions(TypedDict, total=False):
    """Conditions as a user writes them.

    paths        ecmp (hashed with `seed`), spray, rail, shortest
    background   traffic of others, 3-9:10 GB/s or 20% of links between switches
    straggler    5:1.5, a rank slower by a factor, or 5:2ms, one that comes late
    injection    bytes a second that a rank sends at most; `message`: what each message costs
    sharing      auto, max-min (moment by moment) or rounds (bytes of a round on a link)
    """

    paths: str
    seed: int
    background: Iterable[str]
    straggler: Iterable[str]
    injection: str | float | None
    message: str | float
    sharing: str


def parse_conditions(graph: Graph, **asked: Unpack[NetworkOptions]) -> Conditions:
    """Conditions from what a user writes."""
    paths, injection = asked.get("paths", "ecmp"), asked.get("injection")
    if paths not in PATH_CHOICES:
        raise InputError(not_among("paths", paths, PATH_CHOICES))
    sharing = asked.get("sharing", "auto")
    if sharing not in SHARINGS:
        raise InputError(not_among("sharing", sharing, SHARINGS))
    slower, late = {}, {}
    for text in asked.get("straggler", ()):
        rank, factor, seconds = _straggler(graph, text)
        if seconds is None:
            slower[rank] = factor
        else:
            late[rank] = seconds
    cap = None if injection is None else _quantity(injection, "B/s", "injection")
    if cap is not None and not cap > 0:
        raise refusal("injection", str(injection), "a rate above 0")
    return Conditions(
        paths=paths,  # type: ignore[arg-type]
        seed=asked.get("seed", 0),
        background=tuple(_background(graph, text) for text in asked.get("background", ())),
        slower=MappingProxyType(slower),
        late=MappingProxyType(late),
        injection=cap,
        message_s=_quantity(asked.get("message", 0.0), "s", "message"),
        sharing=sharing,  # type: ignore[arg-type]
    )


def link_rates(graph: Graph, asked: Conditions) -> Array:
    """Bytes per second of each link for these flows, background apart."""
    rate = graph.bytes_per_s * asked.framing
    if asked.paths == "spray":
        between = (graph.tail >= graph.ranks) & (graph.head >= graph.ranks)
        rate = np.where(between, rate * asked.sprayed, rate)
    for rank, factor in asked.slower.items():
        rate = np.where((graph.tail == rank) | (graph.head == rank), rate / factor, rate)
    return rate


def _straggler(graph: Graph, text: str) -> tuple[int, float, float | None]:
    match = _STRAGGLER.fullmatch(text.strip())
    expected_text = "RANK:FACTOR of at least 1, or RANK:TIME it begins late, as 5:1.5 or 5:2ms"
    if match is None or int(match.group(1)) >= graph.ranks:
        raise refusal("straggler", repr(text), f"{expected_text}; ranks 0 to {graph.ranks - 1}")
    rank, value = int(match.group(1)), match.group(2)
    try:
        factor = float(value)
    except ValueError:
        return rank, 1.0, _quantity(value, "s", "straggler")
    if not 1 <= factor < 1e6:
        raise refusal("straggler", repr(text), expected_text)
    return rank, factor, None


def _background(graph: Graph, text: str) -> Background:
    share, pair = _SHARE.fullmatch(text.strip()), _PAIR.fullmatch(text.strip())
    if share is not None:
        return Background(share=float(share.group(1)) / 100)
    if pair is None:
        raise refusal("background", repr(text), "A-B:RATE between two nodes, or P% of every link between switches")
    ends = [int(pair.group(1)), int(pair.group(2))]
    if max(ends) >= graph.nodes or ends[0] == ends[1]:
        raise refusal("background", repr(text), f"two nodes of 0 to {graph.nodes - 1}")
    return Background(source=ends[0], target=ends[1], bytes_per_s=_quantity(pair.group(3), "B/s", "background"))


def _quantity(value: str | float, unit: str, path: str) -> float:
    number = parse_quantity(value, unit) if isinstance(value, str) else float(value)
    if not 0 <= number < float("inf"):
        raise refusal(path, str(value), f"0 or more {unit}")
    return number
