"""Which long computations a page may start: searches, analyses of files, and jobs where the user allowed them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.web.jobs import CONFIRMED, TaskFunction

TASKS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "search": ("plan", "search_task"),
    "analyze": ("files", "analyze_task"),
    "sweep": ("serving", "sweep_task"),
    "design": ("design", "design_task"),
    "report": ("report", "report_task"),
    "launch": ("run", "launch_task"),
})  # fmt: skip
"""Name -> the module of `views` and the function that does it."""
LAUNCH_HINT = "start the workbench with `ridgeline open --allow-launch`"


def task_function(name: str, *, allow_launch: bool) -> TaskFunction:
    """The function of a task; one that runs something only where the user allowed that."""
    if name not in TASKS:
        raise InputError(not_among("task", name[:40], TASKS))
    if name in CONFIRMED and not allow_launch:
        problem = Problem(path=name, given="a workbench that starts no jobs", expected="one that may", todo=LAUNCH_HINT)
        raise InputError(problem)
    module, function = TASKS[name]
    work: TaskFunction = getattr(import_module(f"ridgeline.web.views.{module}"), function)
    return work
