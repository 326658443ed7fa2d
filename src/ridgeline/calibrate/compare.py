"""Turn two of anything that has a timeline into a Diff: trace files, folders of ranks, scenarios, timelines.

A scenario is predicted first. This floor holds it because it is the lowest that may know both the simulator and traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import BIGGEST_FILE, read_table
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.sim import Impossible, timeline
from ridgeline.trace.classes import Rules, classify, read_rules
from ridgeline.trace.diff import Diff, diff_timelines
from ridgeline.trace.policy import ALL
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Timeline

SCENARIOS = (".toml", ".yaml", ".yml")
PARTS = frozenset({"system", "workload", "plan"})  # beside a model, what makes a JSON file a scenario and no trace
Comparable = Path | str | Timeline | Scenario


def diff(
    before: Comparable,
    after: Comparable | None = None,
    *,
    policy: str = ALL,
    classes: Path | None = None,
    settings: Sequence[str] = (),
) -> Diff:
    """Why a step of ``after`` takes longer than one of ``before``: causes that sum to the difference.

    Either is a trace file or folder, a scenario file (TOML, YAML, JSON; it is predicted, with ``settings`` applied), or
    such a thing already read. Without ``after``, a scenario is compared with itself as ``settings`` change it.

    >>> found = diff("examples/llama3-70b-64xh100.toml", "examples/llama3-70b-64xh100.toml", settings=["plan.tp=8"])
    >>> found.delta_ns, len(found.causes)
    (0.0, 0)
    >>> diff("examples/llama3-70b-64xh100.toml", settings=["plan.recompute=full"]).delta_ns > 0
    True
    """
    if after is None:
        return _changed(before, policy, read_rules(classes), tuple(settings))
    if settings and not any(_is_scenario(one) for one in (before, after)):
        raise InputError(Problem(path="--set", given=settings[0], expected="a scenario among A and B; both are traces"))
    rules = read_rules(classes)
    sides = [side_of(one, rules, settings) for one in (before, after)]
    labels = (_label(before, "A"), _label(after, "B"))
    return diff_timelines(sides[0], sides[1], rules, policy, labels)


def _changed(what: Comparable, policy: str, rules: Rules, settings: tuple[str, ...]) -> Diff:
    """A scenario against itself with settings."""
    if not isinstance(what, (Path, str)) or not _is_scenario(what):
        expected = "two of them, or a scenario file and --set"
        raise InputError(
            Problem(path="B", given="one trace alone", expected=expected, todo="name what to compare it with")
        )
    if not settings:
        expected = "--set KEY=VALUE, which changes A, or another trace or scenario"
        raise InputError(Problem(path="B", given="nothing", expected=expected))
    sides = [side_of(what, rules, chosen) for chosen in ((), settings)]
    return diff_timelines(sides[0], sides[1], rules, policy, (_label(what, "A"), ", ".join(settings)))


def side_of(what: Comparable, rules: Rules, settings: Sequence[str] = ()) -> Timeline:
    """The classified timeline of one side."""
    if isinstance(what, Timeline):
        return classify(what, rules)
    if isinstance(what, Scenario):
        return predicted_timeline(what, rules)
    path = Path(what)
    if _is_scenario(path):
        return predicted_timeline(read_scenario(path, settings), rules)
    return read_timeline(path, rules=rules)


def _is_scenario(what: Comparable) -> bool:
    """Whether settings apply to it: a scenario file that can still be read otherwise."""
    if not isinstance(what, (Path, str)) or not _is_file(Path(what)):
        return False
    path = Path(what)
    return path.suffix.lower() in SCENARIOS or (path.suffix.lower() == ".json" and _says_scenario(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name no file system takes
        return False


def _says_scenario(path: Path) -> bool:
    """Whether a JSON file holds a scenario: a page with a model and one of its other parts."""
    if path.stat().st_size > BIGGEST_FILE:
        return False
    try:
        held = read_table(path).data
    except InputError:
        return False
    return "model" in held and bool(PARTS & set(held))


def predicted_timeline(scenario: Scenario, rules: Rules, calibration: Calibration | None = None) -> Timeline:
    """One predicted step, classified; an `InputError` with the reasons when there is none."""
    drawn = timeline(scenario, calibration)
    if isinstance(drawn, Impossible):
        raise InputError(drawn.reasons)
    return classify(drawn, rules)


def _label(what: Comparable, otherwise: str) -> str:
    if isinstance(what, Scenario):
        return what.name or otherwise
    return otherwise if isinstance(what, Timeline) else Path(what).name
