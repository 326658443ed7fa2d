"""Turn an algorithm, its graph and conditions into what contention costs: alone, under the conditions, by seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.comm.graph import Graph
from ridgeline.comm.simulation.conditions import Conditions
from ridgeline.comm.simulation.messages import Job
from ridgeline.comm.simulation.simulate import Simulated, over_seeds, simulate
from ridgeline.comm.switched_topologies import split_spines
from ridgeline.core.arrays import Array

SEEDS = 20
MOST_IN_ALL = 40_000_000  # transfers over all seeds
MOST_SPINES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contention:
    """A collective simulated as flows that share links.

    graph         what it ran on: a spine that the graph draws as one is split into switches of a port's rate
    simulated     with the seed asked for, the first job the collective itself, the others beside it
    alone_s       each job by itself: no others, no background, no stragglers
    by_seed       seconds of the collective for each seed tried; one where all choose the same paths
    """

    graph: Graph
    conditions: Conditions
    simulated: Simulated
    jobs: tuple[Job, ...]
    alone_s: tuple[float, ...]
    by_seed: Array
    wall_s: float

    @property
    def seconds(self) -> float:
        """Of the collective itself, from its start to the last arrival."""
        return self.simulated.job_s[0]


def contend(jobs: Sequence[Job], graph: Graph, asked: Conditions, seeds: int = SEEDS) -> Contention:
    """Run the jobs together and by themselves; with hashed paths also under other seeds."""
    begun = time.perf_counter()
    transfers = sum(len(job.algorithm.steps) for job in jobs)
    most = max(1, min(seeds, MOST_IN_ALL // max(transfers, 1))) if asked.paths == "ecmp" else 1
    runs = list(over_seeds(jobs, graph, asked, range(asked.seed, asked.seed + most)))
    first = runs[0]
    quiet = replace(asked, background=(), slower={}, late={})
    busy = len(jobs) > 1 or asked.background or asked.slower or asked.late
    alone = tuple(simulate([replace(job, start_s=0.0)], graph, quiet).seconds for job in jobs) if busy else first.job_s
    times = np.array([one.job_s[0] for one in runs])
    return Contention(
        graph=graph,
        conditions=asked,
        simulated=first,
        jobs=tuple(jobs),
        alone_s=alone,
        by_seed=times if np.ptp(times) > 0 else times[:1],
        wall_s=time.perf_counter() - begun,
    )


def simulated_graph(graph: Graph) -> Graph:
    """The graph with spines as switches whose links have about the rate of a rank's port."""
    reached = np.zeros(graph.nodes, np.bool_)
    reached[graph.head[graph.tail < graph.ranks]] = True
    up = (graph.tail >= graph.ranks) & (graph.head >= graph.ranks) & reached[graph.tail] & ~reached[graph.head]
    if not up.any():
        return graph
    leaf = np.isin(graph.head, np.unique(graph.tail[up])) & (graph.tail < graph.ranks)
    port = float(graph.bytes_per_s[leaf].min())
    return split_spines(graph, int(np.clip(round(float(graph.bytes_per_s[up].min()) / port), 1, MOST_SPINES)))
