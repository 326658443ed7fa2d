"""A plain fluid simulator, one message and one moment at a time, to measure and check `comm.simulation` against.

Steps as messages, ports as queues of rounds, max-min rates by progressive filling, all in lists and dictionaries.
"""

from __future__ import annotations

from collections import defaultdict

from ridgeline.comm.algorithm import Algorithm
from ridgeline.comm.graph import Graph
from ridgeline.comm.routes import shortest_routes


def plain_seconds(algorithm: Algorithm, graph: Graph, size_bytes: float) -> float:
    """Seconds until the last message has arrived, shortest paths, nothing else on the network."""
    steps, shares = algorithm.steps, algorithm.contract.shares() * size_bytes
    ways = [[int(link) for link in way if link >= 0] for way in shortest_routes(graph, steps.source, steps.target)]
    rows = range(len(steps))
    size = [float(shares[steps.chunk[row]]) for row in rows]
    delay = [float(sum(graph.latency_s[link] for link in ways[row])) for row in rows]
    rounds: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    needed, seen, fresh = [0] * len(steps), defaultdict(int), defaultdict(int)
    before = -1
    for row in rows:
        if steps.round[row] != before:
            for place, count in fresh.items():
                seen[place] += count
            fresh, before = defaultdict(int), steps.round[row]
        needed[row] = seen[int(steps.source[row]), int(steps.chunk[row])]
        fresh[int(steps.target[row]), int(steps.chunk[row])] += 1
        out = ways[row][0] if graph.direct else -1 - int(steps.source[row])
        rounds[out, int(steps.channel[row])][int(steps.round[row])].append(row)
    queue = {port: [by_round[key] for key in sorted(by_round)][::-1] for port, by_round in rounds.items()}
    port_of = {row: port for port, groups in queue.items() for group in groups for row in group}
    come: dict[tuple[int, int], int] = defaultdict(int)
    waiting = [row for groups in queue.values() for row in groups.pop()]
    left_in = {port: sum(1 for row in waiting if port_of[row] == port) for port in queue}
    flowing: dict[int, float] = {}
    due: dict[int, float] = {}
    now = last = 0.0
    while True:
        started = [r for r in waiting if come[int(steps.source[r]), int(steps.chunk[r])] >= needed[r]]
        waiting = [row for row in waiting if row not in set(started)]
        flowing.update({row: size[row] for row in started})
        rate = _rates({row: ways[row] for row in flowing}, graph)
        ahead = [left / rate[row] for row, left in flowing.items()] + [when - now for when in due.values()]
        if not ahead:
            return last
        step = max(0.0, min(ahead))
        now += step
        for row in list(flowing):
            flowing[row] -= rate[row] * step
            if flowing[row] <= 1e-9 * size[row]:
                del flowing[row]
                due[row] = now + delay[row]
        for row in [row for row, when in due.items() if when <= now * (1 + 1e-12)]:
            del due[row]
            last = now
            come[int(steps.target[row]), int(steps.chunk[row])] += 1
            port = port_of[row]
            left_in[port] -= 1
            if left_in[port] == 0 and queue[port]:
                group = queue[port].pop()
                left_in[port] = len(group)
                waiting += group


def _rates(ways: dict[int, list[int]], graph: Graph) -> dict[int, float]:
    """Max-min rates: fill the scarcest link, take its flows out, go on."""
    left = {link: float(graph.bytes_per_s[link]) for way in ways.values() for link in way}
    on: dict[int, set[int]] = defaultdict(set)
    for row, way in ways.items():
        for link in way:
            on[link].add(row)
    rate: dict[int, float] = {}
    while len(rate) < len(ways):
        link = min((one for one in on if on[one]), key=lambda one: left[one] / len(on[one]))
        share = left[link] / len(on[link])
        for row in list(on[link]):
            rate[row] = share
            for one in ways[row]:
                left[one] -= share
                on[one].discard(row)
    return rate
