"""The compiled core gives every message the arrival that a plain simulator, one event at a time, gives it."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.comm.algorithm import reduce_then_gather
from ridgeline.comm.library.algorithms import allgather_over, pairwise, ring_allgather
from ridgeline.comm.routes import PathTable, follow_paths, mix_bits
from ridgeline.comm.simulation import compiled, path_choice, simulate
from ridgeline.comm.simulation.conditions import Conditions, parse_conditions
from ridgeline.comm.simulation.fluid_exact import exact_arrivals, make_queues
from ridgeline.comm.simulation.fluid_windows import max_min
from ridgeline.comm.simulation.messages import FluidRun, Job, MessageFlows, needed_writes, port_of
from ridgeline.comm.simulation.path_choice import _hash_connections
from ridgeline.comm.topologies import topology

RATE, ALPHA = 50e9, 5e-7
needs_core = pytest.mark.skipif(compiled.core() is None, reason="no C compiler")


def plain(flows: MessageFlows) -> np.ndarray:
    """Arrivals, one event at a time: rates of all flows anew at each, everything in lists and dictionaries."""
    messages, needed = flows.messages, needed_writes(flows.messages)
    (ports, _), line = port_of(messages, flows.out)
    port, rounds = ports[line].tolist(), defaultdict(lambda: defaultdict(list))
    for row, at in enumerate(port):
        rounds[at][int(messages.round[row])].append(row)
    queue = {at: [groups[turn] for turn in sorted(groups, reverse=True)] for at, groups in rounds.items()}
    opens = {
        at: float(flows.start_s[messages.job[groups[-1][0]]] + flows.late_s[messages.connection[groups[-1][0]]])
        for at, groups in queue.items()
    }
    come, arrived = np.zeros(messages.places, int), np.zeros(len(messages))
    waiting: list[int] = []
    left: dict[int, float] = {}
    due: dict[int, float] = {}
    under_way: dict[int, int] = {}
    now = 0.0

    def open_next(at: int) -> None:
        if queue[at]:
            group = queue[at].pop()
            under_way[at] = len(group)
            waiting.extend(group)

    while opens or waiting or left or due:
        for at in [at for at, when in opens.items() if when <= now]:
            del opens[at]
            open_next(at)
        chunks = {row: slice(messages.first[row], messages.first[row + 1]) for row in waiting}
        ready = [row for row in waiting if (come[messages.read[chunks[row]]] >= needed[chunks[row]]).all()]
        waiting = [row for row in waiting if row not in set(ready)]
        left.update({row: float(messages.size_bytes[row]) for row in ready})
        over = messages.connection[list(left)]
        share = None if flows.ways.share is None else flows.ways.share[over].T
        rate = dict(zip(left, max_min(flows.ways.links[over].T, share, flows.rates), strict=True)) if left else {}
        ends = [now + left[row] / rate[row] for row in left]
        then = max(now, min([*ends, *due.values(), *opens.values()]))
        for row in list(left):
            left[row] -= rate[row] * (then - now)
            if left[row] <= 1e-11 * messages.size_bytes[row]:
                del left[row]
                due[row] = then + float(flows.delay_s[messages.connection[row]])
        now = then
        for row in [row for row, when in due.items() if when <= now * (1 + 1e-13)]:
            arrived[row] = due.pop(row)
            np.add.at(come, messages.write[messages.first[row] : messages.first[row + 1]], 1)
            under_way[port[row]] -= 1
            if not under_way[port[row]]:
                open_next(port[row])
    return arrived


def captured(jobs: list[Job], name: str, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> MessageFlows:
    """The flows of a case as the simulator makes them."""
    graph, found = topology(name, RATE, ALPHA), []

    def keep(flows: MessageFlows, *_: object) -> FluidRun:
        found.append(flows)
        return FluidRun(arrived_s=np.zeros(len(flows.messages)), moments=0)

    with monkeypatch.context() as patch:
        patch.setattr(simulate, "run", keep)
        simulate.simulate(jobs, graph, replace(parse_conditions(graph, **asked), sharing="max-min"))
    return found[0]


def core_arrivals(flows: MessageFlows) -> list[np.ndarray]:
    """By the general core, and by that of ports that take turns where it knows the case."""
    queues, turns = (make_queues(flows.messages, flows.out, turns=turns) for turns in (False, True))
    assert queues is not None
    found = [exact_arrivals(flows, one) for one in (queues, turns) if one is not None]
    assert found[0] is not None
    return [one.arrived_s for one in found if one is not None]


@needs_core
@pytest.mark.parametrize("paths", ["shortest", "ecmp", "spray", "rail"])
@pytest.mark.parametrize(
    "asked",
    [
        {}, {"straggler": ["3:1.7", "5:20us"], "seed": 2}, {"background": ["20%", "0-5:10 GB/s"], "message": "1 us"},
        {"injection": "30 GB/s", "seed": 3},
    ],
)  # fmt: skip
def test_arrivals_of_a_plain_simulator(paths: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    order = np.random.default_rng(1).permutation(8)
    ring = reduce_then_gather(allgather_over(order, "ring"))
    halving = reduce_then_gather(allgather_over(order, "nhr"))
    several = [
        Job(algorithm=pairwise(8), size_bytes=3e6),
        Job(algorithm=ring_allgather(4), size_bytes=2e6, ranks=np.array([0, 2, 5, 7]), start_s=3e-5),
    ]
    for name, jobs in (
        ("leafspine:4x2x2", [Job(algorithm=ring, size_bytes=8e6)]),
        ("rails:4x2x2", several),
        ("leafspine:4x2x1", [Job(algorithm=halving, size_bytes=8e6)]),
        ("mesh:2x4", [Job(algorithm=pairwise(8, at_once=True), size_bytes=8e6)]),
    ):
        flows = captured(jobs, name, monkeypatch, paths=paths, **asked)
        found, wanted = core_arrivals(flows), plain(flows)
        assert len(found) == (1 if flows.ways.share is not None or name == "mesh:2x4" else 2), name
        for one in found:
            assert one == pytest.approx(wanted, rel=1e-7), name


@needs_core
def test_answers_say_that_they_are_exact_and_what_is_without_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, job = topology("leafspine:4x4x4", RATE, ALPHA), Job(algorithm=pairwise(16), size_bytes=1.6e7)
    ring = Job(algorithm=allgather_over(np.random.default_rng(0).permutation(16), "ring"), size_bytes=1.6e7)
    exact = simulate.simulate([ring], graph, Conditions())
    monkeypatch.setenv("RIDGELINE_NATIVE", "off")
    columns = simulate.simulate([ring], graph, Conditions())
    assert (exact.method, columns.method) == ("exact", "windows")
    assert columns.seconds == pytest.approx(exact.seconds, rel=0.02)
    assert simulate.simulate([job], graph, Conditions(sharing="rounds")).method == "rounds"
    monkeypatch.setenv("RIDGELINE_NATIVE", "")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert simulate.simulate([job], graph, Conditions()).method == "windows"


@needs_core
def test_ways_are_those_of_the_columns() -> None:
    for name in ("leafspine:4x4x4", "rails:4x4x2", "planes:8x3", "dragonfly:3x2x2", "domains:4x4", "fattree:4"):
        graph = topology(name, RATE, ALPHA)
        ends = np.array([(a, b) for a in range(graph.ranks) for b in range(graph.ranks) if a != b])
        sources, targets = np.ascontiguousarray(ends.T)
        table = PathTable(graph, targets)
        number = _hash_connections(sources, targets, np.zeros(len(ends), np.int64), 7)
        quick = path_choice.chosen_ways(table, sources, targets, number, True)
        assert quick is not None
        wanted = follow_paths(table, sources, targets, number, mix_bits)
        assert (quick[0] == np.where(wanted < 0, graph.links, wanted)).all(), name
        assert quick[1] == pytest.approx(np.append(graph.latency_s, 0.0)[wanted].sum(axis=1), rel=1e-12), name
        rail = path_choice.chosen_ways(table, sources, targets, sources, False)
        assert rail is not None
        wanted = follow_paths(table, sources, targets, sources)
        assert (rail[0] == np.where(wanted < 0, graph.links, wanted)).all(), name


def test_the_core_is_built_once_and_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    found = compiled.core()
    built = list((tmp_path / "cache").glob("flows-*.so"))
    assert (len(built) == 1) == (found is not None)
    assert not list((tmp_path / "cache").glob("building-*"))
    assert isinstance(found, ctypes.CDLL | None)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "file"))
    assert compiled.core() is None
