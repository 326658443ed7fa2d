"""Turn collectives on a graph and the conditions there into times: of each, by seed, and the load of links."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.comm.graph import Graph, LinkLoad, link_load, refusal
from ridgeline.comm.routes import PathTable
from ridgeline.comm.simulation.conditions import LEFT, Conditions, link_rates
from ridgeline.comm.simulation.fluid_exact import PreparedQueues
from ridgeline.comm.simulation.fluid_windows import run
from ridgeline.comm.simulation.messages import Job, MessageFlows, Messages, Method, messages_of
from ridgeline.comm.simulation.path_choice import Ways, ways
from ridgeline.comm.topologies import split_spines
from ridgeline.core.arrays import Array, Index

MOST_TRANSFERS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedCollective:
    """What became of the jobs.

    seconds      when the last message arrived
    job_s        when each job was over, from its own start
    arrived_s    of each message; messages are what a rank sends another in one round
    link_bytes   that crossed each link of the graph; `link_rates` what the conditions left of it
    transfers    chunks that crossed from one node to another; `moments` at which rates were looked at again
    method       exact, windows or rounds, see `messages.FluidRun`
    """

    seconds: float
    job_s: tuple[float, ...]
    arrived_s: Array
    link_bytes: Array
    link_rates: Array
    transfers: int
    moments: int
    method: Method


def simulate(jobs: Sequence[Job], graph: Graph, asked: Conditions, window: float | None = None) -> SimulatedCollective:
    """Run the jobs together.

    >>> from ridgeline.comm.library.algorithms import ring_allgather
    >>> from ridgeline.comm.topologies import topology
    >>> job = Job(algorithm=ring_allgather(8), size_bytes=8e6)
    >>> round(simulate([job], topology("ring:8", 50e9, 1e-6), Conditions()).seconds * 1e6, 3)
    147.0
    """
    return next(iter(over_seeds(jobs, graph, asked, (asked.seed,), window)))


def over_seeds(
    jobs: Sequence[Job], graph: Graph, asked: Conditions, seeds: Iterable[int], window: float | None = None
) -> Iterable[SimulatedCollective]:
    """The same with one seed of path choice after the other."""
    transfers = sum(len(job.algorithm.steps) for job in jobs)
    if transfers > MOST_TRANSFERS:
        raise refusal("simulate", f"{transfers:,}", f"at most {MOST_TRANSFERS:,} transfers", todo="take fewer ranks")
    sent = messages_of(jobs, graph.nodes)
    between = (sent.sources, sent.targets, sent.channels)
    table = None if asked.paths == "shortest" else PathTable(graph, sent.targets) if len(sent) else None
    core = PreparedQueues(sent, sent.sources)
    by_way = np.bincount(sent.connection, sent.size_bytes, len(sent.sources)).astype(np.float64)
    before: tuple[bytes, SimulatedCollective] | None = None
    for seed in seeds:
        chosen_ways = ways(graph, between, asked.paths, seed, table)
        same = chosen_ways.links.tobytes()
        if before is None or before[0] != same or asked.background:
            before = (
                same,
                _simulate_ways(jobs, graph, replace(asked, seed=seed), (sent, by_way, core), chosen_ways, window),
            )
        yield before[1]


def _simulate_ways(
    jobs: Sequence[Job],
    graph: Graph,
    asked: Conditions,
    what: tuple[Messages, Array, PreparedQueues],
    found: Ways,
    window: float | None,
) -> SimulatedCollective:
    sent, by_way, core = what
    rates = _less_background(graph, asked, link_rates(graph, asked))
    capped_ways = _cap_ranks(graph, asked, sent, found, rates)
    start = np.array([job.start_s for job in jobs])
    late, slow = np.zeros(graph.nodes), np.ones(graph.nodes)
    late[list(asked.late)], slow[list(asked.slower)] = list(asked.late.values()), list(asked.slower.values())
    flows = MessageFlows(
        messages=sent,
        ways=capped_ways[0],
        rates=capped_ways[1],
        delay_s=found.latency_s + asked.message_s * slow[sent.sources],
        out=found.links[:, 0] if graph.direct else sent.sources,
        start_s=start,
        late_s=late[sent.sources],
    )
    done = run(flows, window, asked.sharing, PreparedQueues(sent, flows.out) if graph.direct else core)
    ends = np.zeros(len(jobs))
    if len(jobs) == 1:
        ends[0] = done.arrived_s.max(initial=0.0)
    else:
        np.maximum.at(ends, sent.job, done.arrived_s)
    link_bytes = np.zeros(graph.links + 1)
    for hop, column in enumerate(found.links.T):
        sent_bytes = by_way if found.share is None else by_way * found.share[:, hop]
        link_bytes += np.bincount(column, sent_bytes, graph.links + 1)
    return SimulatedCollective(
        seconds=float(ends.max(initial=0.0)),
        job_s=tuple(float(end_s) for end_s in np.maximum(ends - start, 0.0)),
        arrived_s=done.arrived_s,
        link_bytes=link_bytes[:-1],
        link_rates=rates,
        transfers=len(sent.read),
        moments=done.moments,
        method=done.method,
    )


def _cap_ranks(graph: Graph, asked: Conditions, sent: Messages, found: Ways, rates: Array) -> tuple[Ways, Array]:
    """The ways with what caps ranks as two links more, and the rates of all; the last entry stands for none."""
    if asked.injection is None:
        return found, np.append(rates, np.inf)
    caps = np.full(2 * graph.nodes, asked.injection)
    for rank, factor in asked.slower.items():
        caps[[rank, graph.nodes + rank]] /= factor
    none = graph.links + len(caps)
    links = np.where(found.links == graph.links, none, found.links)
    more: Index = np.stack([graph.links + sent.sources, graph.links + graph.nodes + sent.targets], axis=1)
    share = None if found.share is None else np.concatenate([found.share, np.ones(more.shape)], axis=1)
    wide = Ways(links=np.concatenate([links, more], axis=1), share=share, latency_s=found.latency_s)
    return wide, np.concatenate([rates, caps, [np.inf]])


def _less_background(graph: Graph, asked: Conditions, rates: Array) -> Array:
    """Rates of links after others took theirs; a little is always left."""
    background_rate = np.zeros(graph.links + 1)
    between = np.append((graph.tail >= graph.ranks) & (graph.head >= graph.ranks), False)
    if not between.any():
        between[:-1] = True
    link_rate = np.append(rates, 0.0)
    for flow in asked.background:
        if flow.source < 0:
            background_rate += np.where(between, flow.share * link_rate, 0.0)
            continue
        ends = (np.array([flow.source]), np.array([flow.target]), np.zeros(1, np.int64))
        way = ways(graph, ends, asked.paths, asked.seed)
        np.add.at(background_rate, way.links[0], flow.bytes_per_s * (1.0 if way.share is None else way.share[0]))
    return np.maximum(rates - background_rate[:-1], LEFT * rates)


SEEDS = 20
MOST_IN_ALL = 40_000_000  # transfers over all seeds
MOST_SPINES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTimes:
    """Seconds of the collective over seeds of path choice: collisions are a distribution."""

    count: int
    min: float
    median: float
    p90: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentCollective:
    """A collective that ran at the same time."""

    collective: str
    size_bytes: float
    seconds: float
    alone_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contention:
    """A collective simulated as flows that share links fairly.

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

    `graph` has a spine that the graph draws as one split into switches of a port's rate. The first of `jobs` is the
    collective itself; `alone_s` has each by itself, `by_seed` the seconds for each seed that chose other paths.
    """

    JSON = """
        seconds over_alpha_beta alone_seconds paths=conditions.paths seed=conditions.seed seeds slowest_link beside
        transfers=simulated.transfers method=simulated.method wall_seconds=wall_s
    """
    graph: Graph
    conditions: Conditions
    simulated: SimulatedCollective
    jobs: tuple[Job, ...]
    alone_s: tuple[float, ...]
    by_seed: Array
    wall_s: float
    alpha_beta_s: float

    @property
    def seconds(self) -> float:
        """Of the collective itself, from its start to the last arrival."""
        return self.simulated.job_s[0]

    @property
    def over_alpha_beta(self) -> float:
        """Seconds over those of the closed form."""
        return self.seconds / self.alpha_beta_s if self.alpha_beta_s else 1.0

    @property
    def alone_seconds(self) -> float:
        return self.alone_s[0]

    @property
    def seeds(self) -> SeedTimes | None:
        """The distribution over seeds, where they differ."""
        if len(self.by_seed) < 2:
            return None
        low, median, p90, p95, high = (float(np.quantile(self.by_seed, at)) for at in (0.0, 0.5, 0.9, 0.95, 1.0))
        return SeedTimes(count=len(self.by_seed), min=low, median=median, p90=p90, p95=p95, max=high)

    @property
    def slowest_link(self) -> LinkLoad:
        """The link with the most bytes for what is left of its rate."""
        run, graph = self.simulated, self.graph
        if not graph.links or not run.seconds:
            return LinkLoad(source=0, target=0, bytes=0.0, busy=0.0)
        link = int(np.argmax(run.link_bytes / run.link_rates))
        carried_bytes, rate = float(run.link_bytes[link]), float(run.link_rates[link])
        return link_load(graph, link, carried_bytes, carried_bytes / rate / run.seconds)

    @property
    def beside(self) -> tuple[ConcurrentCollective, ...]:
        """Collectives that ran at the same time."""
        rows = zip(self.jobs, self.simulated.job_s, self.alone_s, strict=True)
        return tuple(
            ConcurrentCollective(collective=job.name, size_bytes=job.size_bytes, seconds=seconds, alone_seconds=alone_s)
            for job, seconds, alone_s in list(rows)[1:]
        )


def contend(
    jobs: Sequence[Job], graph: Graph, asked: Conditions, seeds: int = SEEDS, *, alpha_beta_s: float
) -> Contention:
    """Run the jobs together and by themselves; with hashed paths also under other seeds."""
    begun = time.perf_counter()
    transfers = sum(len(job.algorithm.steps) for job in jobs)
    seed_count = max(1, min(seeds, MOST_IN_ALL // max(transfers, 1))) if asked.paths == "ecmp" else 1
    runs = list(over_seeds(jobs, graph, asked, range(asked.seed, asked.seed + seed_count)))
    first = runs[0]
    quiet = replace(asked, background=(), slower={}, late={})
    busy = len(jobs) > 1 or asked.background or asked.slower or asked.late
    alone_s = (
        tuple(simulate([replace(job, start_s=0.0)], graph, quiet).seconds for job in jobs) if busy else first.job_s
    )
    times = np.array([run.job_s[0] for run in runs])
    return Contention(
        graph=graph,
        conditions=asked,
        simulated=first,
        jobs=tuple(jobs),
        alone_s=alone_s,
        by_seed=times if np.ptp(times) > 0 else times[:1],
        wall_s=time.perf_counter() - begun,
        alpha_beta_s=alpha_beta_s,
    )


def simulated_graph(graph: Graph) -> Graph:
    """The graph with spines as switches whose links have about the rate of a rank's port."""
    is_leaf = np.zeros(graph.nodes, np.bool_)
    is_leaf[graph.head[graph.tail < graph.ranks]] = True
    up = (graph.tail >= graph.ranks) & (graph.head >= graph.ranks) & is_leaf[graph.tail] & ~is_leaf[graph.head]
    if not up.any():
        return graph
    leaf = np.isin(graph.head, np.unique(graph.tail[up])) & (graph.tail < graph.ranks)
    port = float(graph.bytes_per_s[leaf].min())
    return split_spines(graph, int(np.clip(round(float(graph.bytes_per_s[up].min()) / port), 1, MOST_SPINES)))
