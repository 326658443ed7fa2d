"""Turn a PageState into the Scenario that it means, and into the command line that says the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import SUFFIXES
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import resize_name, system
from ridgeline.web.blocks import CodeText
from ridgeline.web.state import PageState, page_choices

if TYPE_CHECKING:
    from ridgeline.plan.scenario import Scenario

Shelf = Mapping[str, Path]
"""Files that were opened or dropped, by the id that a URL holds."""
SIZES = {
    "train": ("seq", "global_batch"), "prefill": ("seq", "batch"), "decode": ("context", "batch"), "serve": ("isl", ""),
}  # fmt: skip
"""What a workload calls its length and its number of sequences."""
MOST_REQUESTS = 400  # of a serve scenario on a page: a second of simulation at the most
FORMATS = {"fp8": '{ compute = "fp8", weights = "fp8", kv = "fp8", activations = "bf16" }'}
"""What one word means where requests are answered: weights and cache in it too."""


def machine_name(state: PageState) -> str:
    """The system's name, such as 64xh100-sxm."""
    name = state["machine"].strip()
    if name.endswith(SUFFIXES):
        raise InputError(
            Problem(path="Chip or system", given=name[:80], expected="an id", todo="drop the file on Files")
        )
    return str(resize_name(name, int(state.amount("chips"))))


def file_of(state: PageState, shelf: Shelf) -> Path | None:
    """The file that a state names; one that is not here is told as such."""
    if not state["file"]:
        return None
    if state["file"] not in shelf:
        todo = "drop it again on the page Files: files live as long as the server that took them"
        raise InputError(Problem(path="file", given=state["file"][:40], expected="a file of this session", todo=todo))
    return shelf[state["file"]]


def is_scenario_file(path: Path) -> bool:
    """Whether a file is a scenario."""
    from ridgeline.core.files import read_table

    if path.suffix.lower() not in SUFFIXES:
        return False
    try:
        return {"system", "plan", "workload"} & read_table(path).data.keys() != set()
    except InputError:
        return False


def state_settings(state: PageState) -> Iterator[str]:
    """The settings that a state means, as `--set` takes them."""
    kind, chosen_keys = state["kind"], state.values
    length, sequences = SIZES[kind]
    if kind != "train":
        yield f"workload.kind={kind}"
    yield f"workload.{length}={state['seq']}"
    if kind == "serve":
        yield f"workload.osl={state['osl']}"
        yield f'workload.arrivals={{ kind = "poisson", rate = {state.amount("rate"):g} }}'
        yield f"workload.requests={MOST_REQUESTS}"
    else:
        yield f"workload.{sequences}={state['batch']}"
    for key, choice in page_choices().items():
        if choice.setting and choice.only in ("", kind) and state[key]:
            value = state[key]
            if key in ("ep", "cp") and value == "1" and key not in chosen_keys:
                continue
            if key == "precision" and kind != "train":
                value = FORMATS.get(value, value)
            yield f"{choice.setting}={value}"
    yield from chip_settings(state)
    yield from state.settings


def chip_settings(state: PageState) -> Iterator[str]:
    """Numbers of the chip that a state changes: so many times what it has."""
    factors = {key: state.amount(key) for key in page_choices() if key.startswith("x_") and key in state.values}
    if not factors:
        return
    chip = system(machine_name(state)).chip
    for key, factor in factors.items():
        for path, unit in CHANGED[key]:
            for name, value in _quantities(chip, path):
                yield f'chip.{name}="{value * factor:.6g} {unit}"'


CHANGED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "x_compute": (("peak", "FLOP/s"),),
    "x_bandwidth": (("hbm.bandwidth", "B/s"),),
    "x_capacity": (("hbm.capacity", "B"),),
    "x_scaleup": (("scaleup.bandwidth", "B/s"),),
    "x_scaleout": (("scaleout.bandwidth", "B/s"),),
}
"""What a multiple changes: paths of a chip with their units."""


def _quantities(chip: Chip, path: str) -> Iterator[tuple[str, float]]:
    if path == "peak":
        yield from ((f"peak.{name}", number.value) for name, number in chip.peak.items())
    else:
        yield path, chip.need(path).value


def state_scenario(state: PageState, shelf: Shelf) -> Scenario:
    """The scenario that a state means, or an `InputError` with every reason why it means none."""
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.plan.scenario_file import scenario as build_scenario
    from ridgeline.search import one_scenario

    path = file_of(state, shelf)
    if path is not None and is_scenario_file(path):
        return read_scenario(path, tuple(file_settings(state)))
    settings = tuple(state_settings(state))
    _refuse_paths(state, settings)
    model = str(path) if path is not None else state["model"]
    if state["kind"] == "serve":
        return build_scenario({"model": model, "system": machine_name(state)}, settings)
    return one_scenario(model, on=machine_name(state), settings=settings)


def scenario_table(state: PageState, shelf: Shelf) -> JsonObject:
    """The scenario of a state as the table of a file."""
    from ridgeline.core.files import read_table
    from ridgeline.plan.scenario_file import apply_settings

    path = file_of(state, shelf)
    if path is not None and is_scenario_file(path):
        table, settings = read_table(path).data, tuple(file_settings(state))
    else:
        model = str(path) if path is not None else state["model"]
        table, settings = {"model": model, "system": machine_name(state)}, tuple(state_settings(state))
    if problems := apply_settings(table, settings):
        raise InputError(problems)
    return table


SCENARIO_FILE = "run.toml"


def scenario_file(state: PageState, shelf: Shelf) -> CodeText:
    """The scenario of a state as a file to save, which verbs take."""
    from ridgeline.core.encode import toml_text

    text = toml_text(scenario_table(state, shelf))
    return CodeText(name="scenario", title="As a scenario file", text=text, file=SCENARIO_FILE)


def file_command(verb: str) -> str:
    """The command line of a verb that takes the scenario as a file."""
    return shlex.join(["ridgeline", verb, SCENARIO_FILE])


def file_settings(state: PageState) -> Iterator[str]:
    """What a state changes of a scenario file: the plan's choices that differ from defaults, and other settings."""
    _refuse_paths(state, state.settings)
    for key, choice in page_choices().items():
        if choice.setting and key in state.values and state[key]:
            yield f"{choice.setting}={state[key]}"
    yield from state.settings


PATH = re.compile(r"(?:^|[\s\"'=\[{])(?:[/~]|\.{1,2}/|[A-Za-z]:\\)|\.(?:toml|json|ya?ml|csv|jsonl|gz|parquet)\b")
"""What looks like a file of this machine."""


def _refuse_paths(state: PageState, settings: tuple[str, ...]) -> None:
    """A page names no files of this machine: those that are dropped have an id."""
    for name, text in (
        ("Model", state["model"]),
        ("Chip or system", state["machine"]),
        *(("Settings", s) for s in settings),
    ):
        if PATH.search(text) or (name != "Settings" and "/" in text):
            todo = "drop the file on the page Files"
            raise InputError(Problem(path=name, given=repr(text[:80]), expected="no path of this machine", todo=todo))


def state_command(state: PageState, verb: str = "predict") -> str:
    """The command line that computes the same.

    >>> state_command(PageState(page="predict"))[:49]
    'ridgeline predict llama3-70b --on 64xh100-sxm --s'
    """
    if state["file"] or state["kind"] == "serve":
        return file_command(verb)
    words = [word for setting in state_settings(state) for word in ("--set", setting)]
    return shlex.join(["ridgeline", verb, state["model"], "--on", machine_name(state), *words])
