"""Processes that answer calls: of this host through pipes, or none at all where one process is everything.

A call gives a future. A process that ends, or fails in a call, is lost: every call it has not answered ends in
`WorkerLost`. Calls of one process are answered in their order.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ridgeline.core.errors import InputError
from ridgeline.runtime.rl.member import SeatMember
from ridgeline.runtime.rl.request import RlRunRequest, Seat
from ridgeline.runtime.train.launch import enter_rank, exit_text, free_port, problems_of, reason
from ridgeline.runtime.train.request import WorkerLost

Answer = Future[Any]
"""What a call answers, some time: of the type of the member's method."""
GRACE = 5.0  # seconds in which a process may end by itself


class Worker(Protocol):
    """A process that has a seat."""

    seat: Seat

    def call(self, method: str, *arguments: object) -> Answer:
        """What a method of its member answers, some time."""

    def end(self) -> None:
        """Take it down."""


class Crew(Protocol):
    """Who can start processes for seats."""

    def start(self, request: RlRunRequest, seats: tuple[Seat, ...]) -> list[Worker]:
        """A process for each; those that train among them meet each other."""

    def close(self) -> None:
        """Give back what processes need together."""


class Inline:
    """The one process of a run without others: calls are answered at once."""

    def __init__(self, request: RlRunRequest, seat: Seat) -> None:
        self.seat, self.member = seat, SeatMember(request, seat)

    def call(self, method: str, *arguments: object) -> Answer:
        answer: Answer = Future()
        try:
            answer.set_result(getattr(self.member, method)(*arguments))
        except Exception as wrong:
            answer.set_exception(wrong)
        return answer

    def end(self) -> None:
        """Nothing but this process is there."""


class InlineCrew:
    """A crew of this process alone."""

    def start(self, request: RlRunRequest, seats: tuple[Seat, ...]) -> list[Worker]:
        return [Inline(request, seat) for seat in seats]

    def close(self) -> None:
        """Nothing was opened."""


class LocalProcess:
    """A process of this host."""

    def __init__(self, request: RlRunRequest, seat: Seat, port: tuple[int, int]) -> None:
        """Start it; `port` is where those that train meet, and how many they are."""
        context = multiprocessing.get_context("spawn")
        self.seat = seat
        self.pipe, there = context.Pipe()
        arguments = (request, seat, port, there)
        self.process = context.Process(target=_serve, args=arguments, daemon=True, name=f"ridgeline {seat.name}")
        self.process.start()
        there.close()
        self.unanswered: deque[Answer] = deque()
        self.lock, self.is_lost = threading.Lock(), False
        threading.Thread(target=self._listen, daemon=True).start()

    def call(self, method: str, *arguments: object) -> Answer:
        answer: Answer = Future()
        with self.lock:
            if self.is_lost:
                answer.set_exception(self._lost("was lost before"))
                return answer
            self.unanswered.append(answer)
        try:
            self.pipe.send((method, arguments))
        except (OSError, ValueError):
            self._fail()
        return answer

    def end(self) -> None:
        self.process.kill()  # it has nothing to save: what counts was answered
        self.process.join()

    def _listen(self) -> None:
        """Answers as they come, until the process is gone."""
        while True:
            try:
                kind, value = self.pipe.recv()
            except (EOFError, OSError):
                self._fail()
                return
            with self.lock:
                answer = self.unanswered.popleft()
            if kind == "done":
                answer.set_result(value)
            elif kind == "refused":
                answer.set_exception(InputError(value))
            else:
                answer.set_exception(WorkerLost(_rank(self.seat), f"{self.seat.name}: {value[0]}", value[1]))

    def _fail(self) -> None:
        self.process.join(GRACE)
        with self.lock:
            self.is_lost = True
            answers, self.unanswered = list(self.unanswered), deque()
        why = exit_text(self.process.exitcode) if self.process.exitcode else "ended"
        for answer in answers:
            answer.set_exception(self._lost(why))

    def _lost(self, why: str) -> WorkerLost:
        return WorkerLost(_rank(self.seat), f"{self.seat.name} {why}", gone=(_rank(self.seat),))


class LocalCrew:
    """Processes of this host, each with a chip of its own."""

    def start(self, request: RlRunRequest, seats: tuple[Seat, ...]) -> list[Worker]:
        ranks = sum(seat.rank is not None for seat in seats)
        port = free_port() if ranks else 0
        return [LocalProcess(request, seat, (port, ranks)) for seat in seats]

    def close(self) -> None:
        """Pipes are closed with their processes."""


def _rank(seat: Seat) -> int:
    return seat.rank if seat.rank is not None else seat.replica or 0


def _serve(request: RlRunRequest, seat: Seat, port: tuple[int, int], pipe: Connection) -> None:
    """The main function of a process: calls one behind the other, until nobody calls any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter_rank(seat.rank or 0, port[1] if seat.rank is not None else 1, seat.chip, port[0])
    member = SeatMember(request, seat)
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = "done", getattr(member, method)(*arguments)
        except InputError as wrong:
            answer = "refused", problems_of(wrong)
        except BaseException as wrong:
            with contextlib.suppress(OSError):
                pipe.send(("failed", (reason(wrong), traceback.format_exc())))
            os._exit(1)  # not through destructors that wait for ranks which are gone
        pipe.send(answer)
