"""Run long computations beside the server: each is started once, followed, stopped, and its answer is remembered.

A task is a function of a state, the shelf and a `tell` that hears how far it is and answers whether to go on. At most
two run at once and the last sixteen are remembered, so that memory stays bounded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem, RidgelineError
from ridgeline.web.blocks import PageBlock, ProblemList, TextLines
from ridgeline.web.scenarios import Shelf
from ridgeline.web.state import PageState

AT_ONCE, REMEMBERED = 2, 16
CONFIRMED: Mapping[str, str] = MappingProxyType({"launch": "run"})
"""Tasks that start only with a word that was typed."""
Tell = Callable[[str], bool]
TaskFunction = Callable[[PageState, Shelf, Tell], tuple[PageBlock, ...]]


@dataclass(slots=True, kw_only=True)
class TaskRun:
    """One run of a task: what it says, whether it was asked to stop, and its answer."""

    key: str
    phase: str = "running"
    words: str = "starting"
    began_s: float = field(default_factory=time.monotonic)
    asked_to_stop: bool = False
    blocks: tuple[PageBlock, ...] = ()

    def tell(self, words: str) -> bool:
        """Hear how far it is; whether to go on."""
        self.words = words
        return not self.asked_to_stop


@dataclass(slots=True)
class TaskBoard:
    """All runs of one server, the newest last."""

    runs: OrderedDict[str, TaskRun] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, key: str, work: Callable[[Tell], tuple[PageBlock, ...]]) -> TaskRun:
        """The run of a key: the one that is going on or has answered, or a new one."""
        with self.lock:
            earlier_run = self.runs.get(key)
            if earlier_run is not None and earlier_run.phase in ("running", "done"):
                return earlier_run
            if sum(run.phase == "running" for run in self.runs.values()) >= AT_ONCE:
                problem = Problem(path="search", given=f"{AT_ONCE} that are running", expected="fewer at once",
                                  todo="cancel one, or wait until it has answered")  # fmt: skip
                raise InputError(problem)
            run = self.runs[key] = TaskRun(key=key)
            self.runs.move_to_end(key)
            self._forget()
        threading.Thread(target=_work, args=(run, work), daemon=True, name="ridgeline-task").start()
        return run

    def find(self, key: str) -> TaskRun | None:
        """The run of a key, if it is remembered."""
        with self.lock:
            return self.runs.get(key)

    def cancel(self, key: str) -> TaskRun | None:
        """Ask a run to stop; it answers with what it has."""
        run = self.find(key)
        if run is not None:
            run.asked_to_stop = True
        return run

    def _forget(self) -> None:
        for key in [key for key, run in self.runs.items() if run.phase != "running"][: len(self.runs) - REMEMBERED]:
            del self.runs[key]


def _work(run: TaskRun, work: Callable[[Tell], tuple[PageBlock, ...]]) -> None:
    try:
        run.blocks = work(run.tell)
        run.phase = "stopped" if run.asked_to_stop else "done"
    except RidgelineError as wrong:
        problems = wrong.problems if isinstance(wrong, InputError) else ()
        reasons = problems or (Problem(path="", given=str(wrong), expected="an answer"),)
        run.blocks, run.phase = (ProblemList(title="No answer", items=tuple(reasons)),), "failed"
    except Exception as wrong:
        words = f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:300]}"
        run.blocks = (TextLines(title="A mistake of Ridgeline's own", lines=(words, "please report it")),)
        run.phase = "failed"
