"""Turn an algorithm, its graph and conditions into what contention costs: alone, under the conditions, by seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.comm.graph import Graph, LinkLoad
from ridgeline.comm.simulation.conditions import Conditions
from ridgeline.comm.simulation.messages import Job
from ridgeline.comm.simulation.simulate import Simulated, over_seeds, simulate
from ridgeline.comm.topologies import split_spines
from ridgeline.core.arrays import Array

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
    simulated: Simulated
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
        link = run.slowest_link
        carried_bytes, rate = float(run.link_bytes[link]), float(run.link_rates[link])
        ends = (int(graph.tail[link]), int(graph.head[link]))
        return LinkLoad(source=ends[0], target=ends[1], bytes=carried_bytes, busy=carried_bytes / rate / run.seconds)

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
