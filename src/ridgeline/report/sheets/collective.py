"""The sheets of `ridgeline collective`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from ridgeline.report.sheets.predict import ProblemSheet


class LinkSheet(TypedDict):
    """A directed link and what it carries.

    source, target   node numbers; ranks first, then switches
    busy             its bytes over its rate, as a share of the collective's time
    """

    source: int
    target: int
    bytes: float
    busy: float


class SeedsSheet(TypedDict):
    """Seconds of the collective over seeds of path choice: collisions are a distribution."""

    count: int
    min: float
    median: float
    p90: float
    p95: float
    max: float


class BesideSheet(TypedDict):
    """A collective that ran at the same time."""

    collective: str
    size_bytes: float
    seconds: float
    alone_seconds: float


class SimulationSheet(TypedDict):
    """The collective simulated as flows that share links fairly.

    seconds         with the seed asked for; `over_alpha_beta` is that over the closed form's seconds
    alone_seconds   without background, stragglers and other collectives
    paths, seed     how ways are chosen: ecmp by a hash, spray over all, rail by the sender's place, shortest
    seeds           null where every seed gives the same time
    slowest_link    the link with the most bytes for what is left of its rate
    beside          collectives that ran at the same time
    transfers       chunks that crossed from one node to another
    method          exact: max-min rates at every start and end; windows: what ends within a tenth of a message's time
                    together (no C compiler, or too many at once); rounds: by the bytes of a round on a link
    wall_seconds    what all simulations took
    """

    seconds: float
    over_alpha_beta: float
    alone_seconds: float
    paths: str
    seed: int
    seeds: SeedsSheet | None
    slowest_link: LinkSheet
    beside: list[BesideSheet]
    transfers: int
    method: Literal["exact", "windows", "rounds"]
    wall_seconds: float


class SizeRangeSheet(TypedDict):
    """Sizes for which one algorithm of the library is the fastest; seconds and bound at both ends."""

    algorithm: str
    chunks: int
    min_bytes: float
    max_bytes: float
    min_seconds: float
    max_seconds: float
    min_bound_seconds: float
    max_bound_seconds: float


class LayerPriceSheet(TypedDict):
    """What a collective takes by one layer of its model.

    seconds     null where the layer knows nothing of it; `reason` says why
    algorithm   what the layer takes, by its own name; blank where it does not choose
    adds        what it counts that the layer before leaves out
    source      where its numbers come from
    """

    seconds: float | None
    algorithm: str
    adds: str
    source: str
    reason: str


class CollectivePricesSheet(TypedDict):
    """The same collective by four layers, each of which counts more than the one before.

    ideal       the algorithm's steps on links as the catalog has them: `seconds` of the answer
    library     what the library's own tuner expects of what it takes (NCCL, RCCL, HCCL)
    benchmark   what nccl-tests would measure
    step        what a training or serving step pays
    """

    ideal: LayerPriceSheet
    library: LayerPriceSheet
    benchmark: LayerPriceSheet
    step: LayerPriceSheet


class CollectiveSheet(TypedDict):
    """A collective on a graph: algorithm, time, what no algorithm beats, and the proof that it is right.

    size_bytes              M, as docs/concepts/collectives.md defines it
    algbw, busbw            size over time; times what a rank sends per byte of size, as nccl-tests counts
    bound_seconds           no algorithm is faster, with chunks as fine as one likes
    bound_by                whether bandwidth or latency sets it
    chunked_bound_seconds   for chunks of this size, one at a time on a link, both halves of an all-reduce; else null
    ratio_to_bound          seconds over the chunked bound, or over the bound where that is null
    rounds, steps           of the algorithm; a step is one chunk from one node to another
    synthesis_seconds       what building the algorithm took; null for one of the library
    verified                every output holds every contribution exactly once, without buffer races
    busiest                 the links with the most bytes for their rate
    simulation              the same under contention; null without --simulate
    prices                  the same by ideal links, library, benchmark and step; null for the algorithm of a file
    by_size                 with --by-size: who is fastest from 1 kB to 10 GB, with the sizes where they cross
    """

    kind: Literal["collective"]
    possible: Literal[True]
    collective: str
    topology: str
    ranks: int
    links: int
    size_bytes: float
    algorithm: str
    seconds: float
    algbw: float
    busbw: float
    bound_seconds: float
    bound_by: str
    chunked_bound_seconds: float | None
    ratio_to_bound: float
    rounds: int
    steps: int
    chunks: int
    synthesis_seconds: float | None
    verified: bool
    busiest: list[LinkSheet]
    simulation: SimulationSheet | None
    prices: CollectivePricesSheet | None
    by_size: NotRequired[list[SizeRangeSheet]]


class LibraryEntrySheet(TypedDict):
    """An algorithm's best form for a collective.

    over_bound   seconds over what nothing beats
    """

    algorithm: str
    collective: str
    seconds: float
    over_bound: float
    rounds: int
    steps: int
    verified: bool


class CollectiveLibrarySheet(TypedDict):
    """What `ridgeline collective list` says: every algorithm of the library, for each collective it can do."""

    kind: Literal["collective-library"]
    topology: str
    ranks: int
    size_bytes: float
    algorithms: list[LibraryEntrySheet]


class VerificationSheet(TypedDict):
    """What `ridgeline collective verify` found in a file.

    format     ridgeline, msccl, mscclpp, nccl-tuner or hccl
    problems   the first steps and outputs that are wrong, each with its rank; none where `verified`
    settings   of a tuner's or environment file, which hold no algorithm: what each rule says
    warnings   rules that the library reads and passes by, each with why
    """

    kind: Literal["verification"]
    format: str
    collective: str
    algorithm: str
    ranks: int
    rounds: int
    steps: int
    verified: bool
    problems: list[ProblemSheet]
    settings: list[str]
    warnings: list[str]


class OptionSheet(TypedDict):
    """One algorithm with one protocol, as a library prices it for itself.

    protocol         LL, LL128 or Simple; blank where the library has none
    latency_s        launch and hops, paid whatever the size
    bytes_s          the rest: bytes over rate
    channels         rings, trees or thread blocks at once; 0 where the library does not choose them here
    """

    algorithm: str
    protocol: str
    seconds: float
    latency_s: float
    bytes_s: float
    algbw: float
    busbw: float
    channels: int


class NotOfferedSheet(TypedDict):
    """An algorithm that a library does not consider here, and why."""

    algorithm: str
    reason: str


class RangeSheet(TypedDict):
    """Sizes from `min_bytes` to `max_bytes` for which one option wins."""

    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int


class BenchmarkSheet(TypedDict):
    """What a benchmark would measure, by the fit to measured collectives.

    seconds, low, high   the prediction, and where nine of ten measurements would lie
    """

    seconds: float
    low: float
    high: float
    algbw: float
    busbw: float


class SweepSheet(TypedDict):
    """One size of a sweep: what the library takes, by its own estimate, and what a benchmark would measure."""

    size_bytes: int
    algorithm: str
    protocol: str
    channels: int
    seconds: float
    busbw: float
    measured_seconds: float
    measured_busbw: float


class LibraryChoiceSheet(TypedDict):
    """What a library would do (`--library nccl`).

    seconds, algbw, busbw    of the option taken, by the library's own cost model: size over time; times `bus_factor`
    bus_factor               what a rank sends per byte of size: 2 (N-1)/N for all-reduce, as nccl-tests counts
    options                  every algorithm and protocol compared, the one taken first
    why                      what decides against the other algorithms
    ranges                   which option wins at which size
    measured                 what a benchmark would measure instead of the library's estimate
    assumptions              what the library would find in the machine and is assumed here
    """

    kind: Literal["library choice"]
    possible: Literal[True]
    library: str
    version: str
    collective: str
    topology: str
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    channels: int
    seconds: float
    algbw: float
    busbw: float
    bus_factor: float
    options: list[OptionSheet]
    not_offered: list[NotOfferedSheet]
    why: list[str]
    ranges: list[RangeSheet]
    measured: BenchmarkSheet
    sweep: list[SweepSheet]
    assumptions: list[str]


class CollectiveRunRowSheet(TypedDict):
    """One size as it ran: medians over repeats of the slowest rank's time.

    seconds, algbw, busbw           of the algorithm's steps, as sends and receives of the backend
    own_seconds, own_algbw, ...     of the backend's own collective, in the same run
    bound_seconds                   no algorithm is faster on a switch whose links are as fast as the measured send
    ratio_to_bound                  seconds over the bound
    wrong                           ranks with outputs that were not right, bit for bit; none where all were
    """

    size_bytes: float
    seconds: float
    algbw: float
    busbw: float
    own_seconds: float
    own_algbw: float
    own_busbw: float
    bound_seconds: float
    ratio_to_bound: float
    wrong: list[str]


class CollectiveRunSheet(TypedDict):
    """What `ridgeline collective run` measured, in the form of nccl-tests.

    send_latency_s, send_bytes_per_s   one message from rank 0 to rank 1: the smallest one's time, the best rate
    correct                            every output of every size was right, bit for bit
    """

    kind: Literal["collective-run"]
    collective: str
    ranks: int
    backend: str
    algorithm: str
    rounds: int
    steps: int
    send_latency_s: float
    send_bytes_per_s: float
    correct: bool
    rows: list[CollectiveRunRowSheet]
