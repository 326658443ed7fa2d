"""Turn `ridgeline bringup` into a call of the library.

0    every op is right        1  an op is wrong, or with --faults one of them was not caught        2  refused
130  stopped by Ctrl-C or SIGTERM: the report says what was judged until then
"""

from __future__ import annotations

import json as codec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ridgeline.cli.refuse import STOPPED
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs, progress_bar
from ridgeline.core.documents import JsonObject
from ridgeline.core.encode import answer_json
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text

if TYPE_CHECKING:
    from ridgeline.cost import Profile
    from ridgeline.runtime.bringup import BringUp, FaultsReport, ImportedDump, Rates


def bringup(
    model: str = "", device: str = "cpu", faults: Path | None = None, fault: str = "", allow: list[str] | None = None,
    seed: int = 0, chip: str | None = None, profile: Path | None = None, save_fingerprint: bool = False,
    graph_breaks: bool = False, msprobe: Path | None = None, html: Path | None = None, output: Path | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    """Run a model on a device: every op, the ladder, invariances; judged against fp64 arithmetic on the host."""
    from ridgeline.runtime import need_torch
    from ridgeline.runtime.bringup import CORPUS, FaultsReport, allowances, fault_names, folder_of, target_of

    need_torch("bringup")
    report, repros = _outputs(html, output)
    if msprobe is not None:
        _judge_dump(msprobe, model, html, report, json)
    if not model:
        expectation = "a model to bring up, or --msprobe FOLDER"
        todo = "`ridgeline show models` lists them"
        raise InputError(Problem(path="MODEL", given="none", expected=expectation, todo=todo))
    target = target_of(model)
    faults = Path(CORPUS) if faults is None and fault else faults
    options: JsonObject = {"seed": seed, "faults": faults or ""}
    device_profile = _profile_of(profile, save_fingerprint, faults is not None)
    from ridgeline.runtime.bringup import Fingerprint

    options |= {
        "allow": allowances(allow or []),
        "stored": (
            Fingerprint.from_table(device_profile.fingerprint)
            if device_profile is not None and device_profile.fingerprint
            else None
        ),
    }
    names = fault_names(faults, fault) if faults is not None else []
    if not names:
        folder = folder_of(repros, target, device)
        options |= {"rates": _rates(chip, device_profile), "graph_breaks": graph_breaks}
        bring_up = _bring_up(target, device, json, {"folder": folder, **options})
        found = bring_up if bring_up.is_stopped else _save_fingerprint(bring_up, profile, save_fingerprint)
        _hand_over(found, html, report, json)
        raise typer.Exit(STOPPED if found.is_stopped else 0 if found.right else 1)
    each = []
    for name in names:
        folder = folder_of(repros, target, device, name)
        found = _bring_up(target, device, json, {"fault": name, "folder": folder, **options})
        found.fault = name
        each.append(found)
        if not json and not fault:
            answer(each[-1], json)
        if found.is_stopped:
            break
    if fault:
        _hand_over(each[0], html, report, json)
        raise typer.Exit(STOPPED if each[0].is_stopped else 0 if each[0].right else 1)
    _hand_over(faults_report := FaultsReport(faults=tuple(each)), html, report, json)
    raise typer.Exit(STOPPED if each[-1].is_stopped else 0 if faults_report.caught == len(each) else 1)


def _bring_up(target: object, device: str, json: bool, options: JsonObject) -> BringUp:
    """The library's answer; whoever sits at the terminal sees how far it is, and may stop it."""
    from ridgeline.runtime.bringup import bringup as library

    with progress_bar("bringing up", json=json, stoppable=True) as wait:
        return library(target, device, progress=wait, **options)


def _outputs(html: Path | None, output: Path | None) -> tuple[Path | None, Path | None]:
    """Where the report goes, and where reproductions do; both are refused before the work if they cannot be written."""
    is_file = output is not None and output.suffix == ".json"
    report = output if output is None or is_file else output / "report.json"
    if output is not None and not is_file:
        output.mkdir(parents=True, exist_ok=True)
    check_outputs(html, report)
    return report, None if is_file else output


def _judge_dump(folder: Path, model: str, html: Path | None, output: Path | None, json: bool) -> None:
    """Judge a dump of msprobe, and end."""
    from ridgeline.runtime.bringup import bringup_msprobe

    if model:
        raise InputError(Problem(path="MODEL", given=repr(model), expected="none beside --msprobe"))
    with progress_bar("judging", json=json) as wait:
        answer = bringup_msprobe(folder, wait)
    _hand_over(answer, html, output, json)
    raise typer.Exit(0 if answer.right else 1)


def _profile_of(path: Path | None, save: bool, faulted: bool) -> Profile | None:
    """The profile; whatever would keep a fingerprint from being stored in it is refused before the work."""
    from ridgeline.cost import read_profile, refuse_stored

    if save and (path is None or faulted):
        given_text = "no --profile" if path is None else "a fault, whose arithmetic is not the device's"
        todo = "write a profile with `ridgeline characterize -o FILE`, and give it without faults"
        raise InputError(Problem(path="--save-fingerprint", given=given_text, expected="--profile FILE", todo=todo))
    profile = None if path is None else read_profile(path)
    if save and path is not None and profile is not None:
        refuse_stored(profile, path)
        check_outputs(path)
    return profile


def _save_fingerprint(found: BringUp, path: Path | None, save: bool) -> BringUp:
    """The same, once what was found of the arithmetic unit is stored in the profile, where that is asked for."""
    from ridgeline.cost import save_fingerprint

    if not save or path is None:
        return found
    if found.fingerprint is None or not found.fingerprint.products:
        say("no fingerprint was stored: none could be taken", err=True)
        return found
    save_fingerprint(path, found.fingerprint.as_table())
    say(f"{path}: the fingerprint is stored", err=True)
    return found


def _rates(chip: str | None, profile: Profile | None) -> Rates | None:
    """What is possible, of a profile or of a chip that is named; else the device's name tells."""
    from ridgeline.hardware.load import chip as read_chip
    from ridgeline.runtime.bringup import rates_of

    if profile is not None:
        return _measured_rates(profile)
    return rates_of(read_chip(chip)) if chip is not None else None


def _measured_rates(profile: Profile) -> Rates:
    """The best rates that a profile holds."""
    from ridgeline.cost import ceilings
    from ridgeline.runtime.bringup import Rates

    file = Path(profile.source).name
    best = {ceiling.name: ceiling.measured for ceiling in ceilings(profile)}
    products = {name.removeprefix("product "): rate for name, rate in best.items() if name.startswith("product ")}
    moved = [best[name] for name in ("copy", "read", "write") if name in best]
    name = profile.chip or str(profile.device.get("name", "")) or file
    return Rates(
        name=name, flops_per_s=products, bytes_per_s=max(moved, default=None), source=f"measured, {file}",
    )  # fmt: skip


def _hand_over(
    found: BringUp | FaultsReport | ImportedDump, html: Path | None, output: Path | None, json: bool
) -> None:
    """The report on the terminal, as a page and as a file."""
    if html is not None:
        from ridgeline.report import page

        write_text(html, page(found))
    if output is not None:
        write_text(output, codec.dumps(answer_json(found), indent=1, allow_nan=False) + "\n")
    answer(found, json)
