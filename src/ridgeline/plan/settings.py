"""Turn `key.path=value` of a command line into keys of a scenario's table.

A setting below a short form turns it into a table first: upon `recompute = "full"`, `plan.recompute.layers=2` makes
`{ kind = "full", layers = 2 }`. A table of another kind replaces the one that is there, and a trace of requests the
lengths that stood beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import Problem, not_among
from ridgeline.hardware.load import merge
from ridgeline.plan.plan import shares

KEYS = ("model", "system", "chip", "workload", "plan", "engine", "name", "notes", "measured")
ARRIVALS, LENGTHS = "workload.arrivals", ("isl", "osl", "range_ratio", "lengths")
# a setting below one of these turns its short form into a table: the short form goes under this name
SHORT = {
    "model": "base",
    "system": "base",
    "chip": "base",
    "engine": "base",
    "plan.schedule": "name",
    "plan.precision": "name",
    "plan.recompute": "kind",
    "workload.optimizer": "name",
}


def unknown_keys(table: JsonMapping) -> list[Problem]:
    """Keys that no scenario has."""
    return [not_among(str(key), str(key), KEYS, "remove it") for key in table if key not in KEYS]


def apply_settings(data: JsonObject, settings: Iterable[str]) -> list[Problem]:
    """Write each `key.path=value` into the table; what cannot be written comes back as problems.

    A parent is written before its children, whichever was said first: `plan.recompute.layers=2` stays when
    `plan.recompute=full` follows it. Of one key said twice the later counts.
    """
    problems: list[Problem] = []
    settings_in_order = parents_first(settings)
    _make_way(data, settings_in_order)
    for setting in settings_in_order:
        _set(data, setting, problems)
    return problems


def _make_way(data: JsonObject, settings: Iterable[str]) -> None:
    """Lengths of requests that the table describes make way for those of a file that a setting names."""
    for setting in settings:
        key, _, text = setting.partition("=")
        value, work = parse_value(text), data.get("workload")
        is_trace = isinstance(value, str) or (isinstance(value, Mapping) and value.get("kind") == "trace")
        if isinstance(work, Mapping) and (key.strip() == "workload.lengths" or (key.strip() == ARRIVALS and is_trace)):
            data["workload"] = {name: entry for name, entry in work.items() if name not in LENGTHS}


def parents_first(settings: Iterable[str]) -> list[str]:
    """Settings by depth of their key, otherwise in order.

    >>> parents_first(["plan.recompute.layers=2", "plan.tp=2", "plan.recompute=full"])
    ['plan.tp=2', 'plan.recompute=full', 'plan.recompute.layers=2']
    """
    return sorted(settings, key=lambda setting: setting.partition("=")[0].count("."))


def told_by(settings: Iterable[str], problem: Problem) -> Problem:
    """The problem with `--set` as its place where a setting wrote what it is about."""
    paths = [setting.partition("=")[0].strip() for setting in settings]
    is_set = any(f"{problem.path}.".startswith(f"{path}.") for path in paths if path)
    return replace(problem, where="--set") if is_set and not problem.where else problem


def _set(data: JsonObject, setting: str, problems: list[Problem]) -> None:
    """Apply one `key.path=value`; the value is TOML where it parses as such, otherwise a string."""
    path, equals, text = setting.partition("=")
    keys = [part.strip() for part in path.split(".")]
    if not equals or not all(keys):
        problems.append(
            Problem(path="--set", given=repr(setting), expected="key.path=value", todo="for example plan.tp=4")
        )
        return
    if keys[0] not in KEYS:
        problems.extend(unknown_keys({keys[0]: None}))
        return
    value = parse_value(text)
    at: JsonObject = data
    for depth, key in enumerate(keys[:-1]):
        below, here = at.get(key), ".".join(keys[: depth + 1])
        if here == "plan.offload":
            below = shares(below)
        elif isinstance(below, str):
            below = {SHORT.get(here, "value"): below}
        at[key] = dict(below) if isinstance(below, Mapping) else {}
        at = at[key]
    at[keys[-1]] = _join_values(at.get(keys[-1]), value)


def _join_values(there: Any, value: Any) -> Any:
    """A table is joined with the one that is there, unless it is of another kind: then nothing of that is left."""
    if not isinstance(value, Mapping) or not isinstance(there, Mapping):
        return value
    return dict(value) if value.get("kind", there.get("kind")) != there.get("kind") else merge(there, value)


def parse_value(text: str) -> Any:
    """A setting's value: TOML where it parses as such, otherwise the text itself.

    >>> parse_value("4"), parse_value("8 TB/s"), parse_value("true"), parse_value("[1, 2]")
    (4, '8 TB/s', True, [1, 2])
    """
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number or a nesting that nobody means
        return text.strip()
