"""Run a collective algorithm on real ranks: start them, carry its steps out, check every output, time it.

Beside the time stand the backend's own collective, measured in the same run, and the bound: what no algorithm beats on
a switch whose links are as fast as one send between rank 0 and rank 1 was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ridgeline.comm import (
    PLAIN_COLLECTIVES,
    Algorithm,
    Collective,
    bus_factor,
    collective,
    lower_bound,
    verify_algorithm,
)
from ridgeline.comm import topology as graph_named
from ridgeline.comm.formats import read_collective, write_algorithm
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.units import parse_quantity
from ridgeline.runtime.measure import need_torch
from ridgeline.runtime.probe.ranks import find_world

BACKENDS = ("gloo", "nccl", "ridge_shm")
FACTOR = 4.0  # from one size to the next
MOST_RANKS = 64  # that this process starts itself
MOST_SIZES = 32
SIGNALLED = 128  # beyond which exit codes say that a signal ended a process
TAIL = 800  # characters of what a rank said last


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One size as it ran: medians over repeats of the slowest rank's time.

    seconds, algbw, busbw             of the algorithm's steps, as sends and receives of the backend
    own_seconds, own_algbw, own_busbw  of the backend's own collective, in the same run
    bound_seconds                     no algorithm is faster on a switch whose links are as fast as the measured send
    ratio_to_bound                    seconds over the bound
    wrong                             ranks with outputs that were not right, bit for bit; none where all were
    """

    JSON = """
        size_bytes seconds algbw busbw own_seconds own_algbw own_busbw bound_seconds ratio_to_bound wrong
    """
    size_bytes: float
    seconds: float
    own_seconds: float
    bound_seconds: float
    wrong: tuple[str, ...]
    bus_factor: float

    @property
    def algbw(self) -> float:
        return self.size_bytes / self.seconds

    @property
    def busbw(self) -> float:
        return self.algbw * self.bus_factor

    @property
    def own_algbw(self) -> float:
        return self.size_bytes / self.own_seconds

    @property
    def own_busbw(self) -> float:
        return self.own_algbw * self.bus_factor

    @property
    def ratio_to_bound(self) -> float:
        return self.seconds / self.bound_seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveRun:
    """What `ridgeline collective run` measured, in the form of nccl-tests.

    send_latency_s, send_bytes_per_s   one message from rank 0 to rank 1: the smallest one's time, the best rate
    correct                            every output of every size was right, bit for bit
    """

    JSON = """
        kind='collective-run' collective ranks=algorithm.ranks backend algorithm=algorithm.name
        rounds=algorithm.rounds steps=algorithm.step_count send_latency_s=latency_s send_bytes_per_s=bytes_per_s
        correct rows
    """
    collective: Collective
    algorithm: Algorithm
    backend: str
    latency_s: float
    bytes_per_s: float
    rows: tuple[RunRow, ...]

    @property
    def correct(self) -> bool:
        """Whether every output of every size was right, bit for bit."""
        return not any(row.wrong for row in self.rows)


def collective_run(
    name: str,
    *,
    ranks: int = 2,
    backend: str = "gloo",
    sizes: str = "1KB:64MB",
    algorithm: str = "",
    synthesize: bool = False,
    topology: str = "",
    without: Sequence[str] = (),
    root: int = 0,
    timeout_s: float = 120.0,
) -> CollectiveRun | None:
    """Carry an algorithm out on ranks that this process starts, or on those of torchrun; None at ranks beside 0.

    algorithm   a name of the library, or a file: Ridgeline's, MSCCL XML, an MSCCL++ execution plan; absent: the fastest
                by the model
    topology    what to choose or synthesize it for, less `without`; a switch if absent
    sizes       1KB:64MB by factors of four, or single sizes with commas
    """
    need_torch("collective run")
    if backend not in BACKENDS:
        raise InputError(not_among("--backend", backend, BACKENDS))
    world = find_world()
    ranks = world.ranks if world.ranks > 1 else ranks
    if backend == "nccl" and world.ranks == 1:
        _need_chips(ranks)
    sizes_bytes = _sizes(sizes)
    how: JsonObject = {"topology": topology or f"switch:{ranks}", "without": tuple(without), "size": sizes_bytes[-1]}
    algorithm_ = _algorithm(name, ranks, algorithm, {**how, "synthesize": synthesize, "root": root})
    spec = {"backend": backend, "sizes": sizes_bytes, "root": root, "timeout_s": timeout_s}
    if world.ranks > 1:
        from ridgeline.runtime.collective_ranks import join_and_measure

        answer = join_and_measure(spec, algorithm_, world.rank, "env://")
        return _collective_run(algorithm_, backend, root, answer) if world.rank == 0 else None
    return _collective_run(algorithm_, backend, root, _start(spec, algorithm_, timeout_s))


def _need_chips(ranks: int) -> None:
    """nccl takes a GPU for each rank of a host; two ranks on one are refused by it later and less clearly."""
    import torch

    if torch.cuda.device_count() < ranks:
        given_text = f"{ranks} ranks, {torch.cuda.device_count()} GPUs here"
        todo = "start it with torchrun on several hosts, or take --backend gloo"
        raise InputError(Problem(path="--backend nccl", given=given_text, expected="a GPU for each rank", todo=todo))


def _algorithm(name: str, ranks: int, chosen: str, how: JsonObject) -> Algorithm:
    """The algorithm of a file, or the one that is named, or chosen or synthesized by `how`."""
    if name not in PLAIN_COLLECTIVES:
        raise InputError(not_among("collective", name, PLAIN_COLLECTIVES))
    if not 2 <= ranks <= MOST_RANKS:
        raise InputError(Problem(path="--ranks", given=str(ranks), expected=f"2 to {MOST_RANKS}"))
    if chosen.endswith((".json", ".xml")) or "/" in chosen:
        algorithm = _from_file(Path(chosen))
    else:
        algorithm = collective(name, algorithm=chosen, **how).algorithm
    if algorithm.contract.collective != name or algorithm.ranks != ranks:
        given_text = f"{algorithm.contract.collective} of {algorithm.ranks} ranks"
        other_ranks = f"--ranks {algorithm.ranks}, or as many of torchrun"
        todo = other_ranks if algorithm.ranks != ranks else "name the file's collective"
        raise InputError(Problem(path="algorithm", given=given_text, expected=f"{name} of {ranks} ranks", todo=todo))
    if algorithm.nodes > algorithm.ranks:
        todo = "take one in which ranks send to ranks"
        raise InputError(Problem(path="algorithm", given="sums inside a switch", expected="none", todo=todo))
    proven = verify_algorithm(algorithm)
    if not proven.ok:
        raise InputError(list(proven.problems))
    return algorithm


def _from_file(path: Path) -> Algorithm:
    """The algorithm of a file of Ridgeline's, an MSCCL XML file or an MSCCL++ execution plan."""
    collective = read_collective(path)
    if collective.verification is not None and not collective.verification.ok:
        raise InputError(list(collective.verification.problems))
    if collective.algorithm is None:
        expected_text, todo = "an algorithm", "`ridgeline collective -o FILE --to msccl` writes one"
        given_text = f"a file of {collective.format} settings"
        raise InputError(Problem(path=str(path), given=given_text, expected=expected_text, todo=todo))
    return collective.algorithm


def _sizes(text: str) -> list[float]:
    """Sizes in bytes: a range, or some with commas."""
    text = text.replace("KB", "kB")  # as nccl-tests' users write it
    low, colon, high = text.partition(":")
    if not colon:
        quantities = [parse_quantity(part, "B") for part in text.split(",")]
    else:
        at, last = parse_quantity(low, "B"), parse_quantity(high, "B")
        quantities = []
        while 0 < at <= last * 1.0001 and len(quantities) <= MOST_SIZES:
            quantities.append(at)
            at *= FACTOR
    if not quantities or min(quantities) <= 0 or len(quantities) > MOST_SIZES:
        expected_text = f"1KB:64MB, or up to {MOST_SIZES} sizes with commas"
        raise InputError(Problem(path="--sizes", given=text, expected=expected_text))
    return quantities


def _start(spec: JsonMapping, made: Algorithm, timeout_s: float) -> JsonObject:
    """Start the ranks and wait for them; when one fails, the others are ended and it is named."""
    with _ended_in_order(), tempfile.TemporaryDirectory(prefix="ridgeline-run-") as folder:
        place = Path(folder)
        write_algorithm(made, place / "algorithm.json")
        (place / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            ranks.extend(_rank(place, rank, made.ranks) for rank in range(made.ranks))
            _wait(ranks, place, time.monotonic() + timeout_s * (1 + len(spec["sizes"])))
        finally:
            for process in ranks:
                with suppress(OSError):
                    process.kill()
                process.wait()
        return cast(JsonObject, json.loads((place / "found.json").read_text(encoding="utf-8")))


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """The signal with which schedulers end a process unwinds this one: ranks are ended, and the folder is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(SIGNALLED + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _rank(place: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "ridgeline.runtime.collective_ranks", str(place / "spec.json")]
    with open(place / f"said{rank}", "wb") as log:
        return subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=log)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], place: Path, until: float) -> None:
    while True:
        codes = [process.poll() for process in ranks]
        failures = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if failures:
            log_text = (place / f"said{failures[0]}").read_text(encoding="utf-8", errors="replace").strip()
            given_text = f"rank {failures[0]} ended with code {codes[failures[0]]}: {log_text[-TAIL:]}"
            raise InputError(Problem(path="collective run", given=given_text, expected="every rank to finish"))
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > until:
            late = [str(rank) for rank, code in enumerate(codes) if code is None]
            given_text = f"no answer of rank {', '.join(late)} in time"
            raise InputError(
                Problem(path="--timeout", given=given_text, expected="an answer", todo="give more seconds")
            )
        time.sleep(0.05)


def _collective_run(made: Algorithm, backend: str, root: int, answer: JsonMapping) -> CollectiveRun:
    latency_s, bytes_per_s, name = answer["latency_s"], answer["bytes_per_s"], made.contract.collective
    graph, factor, rows = graph_named(f"switch:{made.ranks}", bytes_per_s, 0.0), bus_factor(name, made.ranks), []
    for row in answer["rows"]:
        bound_seconds = max(lower_bound(graph, name, row["size_bytes"], root).bandwidth_s, latency_s)
        wrong = tuple(f"rank {rank}: chunk {chunks[0]}" for rank, chunks in row["wrong"].items())
        rows.append(RunRow(**{**row, "wrong": wrong}, bound_seconds=bound_seconds, bus_factor=factor))
    return CollectiveRun(
        collective=name, algorithm=made, backend=backend, latency_s=latency_s, bytes_per_s=bytes_per_s, rows=tuple(rows)
    )
