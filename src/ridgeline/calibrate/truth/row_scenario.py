"""Turn a measured Row into the Scenario that a user would have written, or into the reason why that cannot be done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.calibrate.truth.csv_cells import RowCells, Skipped, Unusable
from ridgeline.calibrate.truth.infer_recompute import fitting
from ridgeline.calibrate.truth.row_habits import engine_habits
from ridgeline.calibrate.truth.row_model import model_table
from ridgeline.calibrate.truth.row_plan import engine_of, plan_table, workload_table
from ridgeline.calibrate.truth.rows import TRUTH, Row
from ridgeline.core.errors import Problem, RidgelineError, near
from ridgeline.core.files import parse_table
from ridgeline.hardware.load import CHIPS, SYSTEMS, system
from ridgeline.hardware.topology import Torus
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble

# where in a scenario a problem lies -> the columns it comes from
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "plan.tp": "tp",
        "plan.pp": "pp, vpp",
        "plan.dp": "dp",
        "plan.cp": "cp",
        "plan.ep": "ep",
        "plan.microbatch": "micro_batch, global_batch",
        "plan.schedule": "vpp, micro_batch, global_batch",
        "plan.shard_degree": "x_shard_degree",
        "plan.precision": "precision",
        "plan.engine": "x_engine",
        "plan.recompute": "recompute",
        "plan.offload": "x_offload",
        "system": "x_chip, gpus",
        "chip": "x_chip",
        "workload.seq": "seq_len",
        "workload.global_batch": "global_batch",
        "workload": "x_task",
        "model.hidden": "hidden",
        "model.layers": "layers",
        "model.vocab": "vocab",
        "model.attention": "heads, kv_heads, x_head_dim",
        "model.kv_heads": "heads, kv_heads",
        "model.mlp": "ffn_hidden",
        "model.moe": "experts, topk, expert_ffn",
        "model.topk": "experts, topk",
        "model": "model_name",
    }
)
_NODES = re.compile(r"(\d{1,6})x(\d{1,4})")
# scale-out rates as interconnects state them: of a chip, or of a node whose chips share it
_FABRICS = (
    (re.compile(r"(\d{2,4}) ?Gb(?:/s)?(?: [\w-]+)?(?: per |/)(?:GPU|NPU)"), False),
    (re.compile(r"(\d{2,5}) ?Gbps/node"), True),
    (re.compile(r"Compute: (\d{1,2})x [^,]*?(\d{2,4}) ?Gb"), True),
    (re.compile(r"(\d{1,2}) ?x (?:ConnectX|MT|BF)[^,]*?(\d{3,4}) ?Gb"), True),
    (re.compile(r"(\d{1,2})x(\d{2,4}) ?Gb"), True),
)
# accelerators that tables list under a relative: an A800 has slower links than an A100, a GCD is half of an MI250X
RELATIVES = (("A800", "a100-80-sxm", "a800-80-sxm"), (r"per GCD", "mi250x", "mi250x-gcd"))
_SLICES = re.compile(r"(\d{1,5}) slices?(?:\(s\))? x (\d{1,6}) chips.*")


def to_scenario(row: Row) -> Scenario | Skipped:
    """The scenario of a measured row, assumptions and all; never raises for what a row holds.

    >>> from ridgeline.calibrate.truth.rows import read_rows
    >>> rows = {row.id: row for row in read_rows()}
    >>> made = to_scenario(rows["h200-003"])
    >>> made.model.id, made.system.name, made.plan.recompute.kind
    ('llama3.2-1b with tied=False', '1xh200-sxm', 'full')
    """
    cells = RowCells(row=row)
    try:
        told = row["x_scenario"]
        built, problems = assemble(_told_scenario(told), folder=TRUTH) if told else assemble(scenario_table(cells))
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except RidgelineError as wrong:
        return Skipped(id=row.id, reason=str(wrong).splitlines()[0])
    if built is None or problems:
        return Skipped(id=row.id, reason="; ".join(_told(problem) for problem in problems))
    return fitting(replace(built, assumptions=(*cells.notes, *built.assumptions)))


def _told_scenario(text: str) -> dict[str, Any]:
    """The scenario a row carries as JSON; paths in it are refused, for a table may come from anybody."""
    return dict(parse_table(Path("x_scenario.json"), text).data)


def scenario_table(cells: RowCells) -> dict[str, Any]:
    """The row as the table a scenario file holds; notes gather in `cells`."""
    engine, chip = engine_of(cells), _chip(cells)
    return {
        "name": cells.row.id,
        "model": model_table(cells, engine),
        "system": _system(cells, chip),
        "workload": workload_table(cells, engine),
        "plan": plan_table(cells, engine, CHIPS[chip]),
        **engine_habits(cells),
    }


def _told(problem: Problem) -> str:
    """The problem by the columns it comes from instead of by its place in a scenario."""
    path = problem.path
    while path and path not in COLUMNS:
        path = path.rpartition(".")[0]
    return f"{COLUMNS.get(path, problem.path)}: got {problem.given}, expected {problem.expected}"


def _chip(cells: RowCells) -> str:
    """The catalog id of the row's chip: `x_chip`, or what the accelerator's text means."""
    stated, text = cells.text("x_chip"), cells.text("accelerator")
    if stated:
        id = CHIPS.resolve(stated)
        if id is None:
            raise Unusable("x_chip", f"got {stated[:40]!r}, expected a chip of the catalog{_such_as(stated)}")
        return _meant(cells, id, text)
    if not text:
        raise Unusable("x_chip", "blank, and so is accelerator")
    bare = re.sub(r"\(.*?\)", "", text).strip()
    words = [text, bare, *(bare.rsplit("-", cut)[0] for cut in range(1, bare.count("-") + 1))]
    words += [re.sub(r"-?\d+GB", "", word) for word in words]
    id = next((found for word in words if word and (found := CHIPS.resolve(word))), None)
    if id is None:
        raise Unusable("accelerator", f"got {text[:40]!r}, expected a chip of the catalog{_such_as(bare)}")
    cells.note(f"chip = {id}: from accelerator {text[:40]!r}")
    return id


def _meant(cells: RowCells, id: str, text: str) -> str:
    """The chip the accelerator's text names where `x_chip` holds its nearest relative."""
    for words, near_id, meant in RELATIVES:
        if id == near_id and re.search(words, text, re.IGNORECASE):
            cells.note(f"chip = {meant}: accelerator says {text[:40]!r}")
            return meant
    return id


def _such_as(text: str) -> str:
    close = near(text[:40], CHIPS)
    return f" such as {', '.join(close)}" if close else "; `ridgeline show chips` lists them"


def _system(cells: RowCells, chip: str) -> str | dict[str, Any]:
    """The system's name, with the slices or the part of a node where the row says so."""
    gpus, text = cells.need("gpus"), cells.text("nodes_gpus_per_node").lower()
    name = f"{gpus}x{chip}"
    template = SYSTEMS[CHIPS[chip].system]
    nodes, slices = _NODES.fullmatch(text), _SLICES.fullmatch(text)
    fabric = _fabric(cells, int(nodes[2]) if nodes else template.node)
    if slices and int(slices[1]) > 1 and int(slices[1]) * int(slices[2]) == gpus:
        inner = system(f"{slices[2]}x{chip}").tiers[0].topology
        return f"{slices[1]}x{chip}:{'x'.join(map(str, inner.shape))}" if isinstance(inner, Torus) else name
    if nodes and int(nodes[1]) > 1 and int(nodes[1]) * int(nodes[2]) == gpus:
        joined, per_node = template.tier[0].chips, int(nodes[2])
        if joined is not None and joined == template.node and per_node < joined:
            return {"base": name, "domain": per_node} | _outer(name, fabric)
    return {"base": name} | _outer(name, fabric) if fabric and _outer(name, fabric) else name


def _fabric(cells: RowCells, per_node: int) -> float:
    """Scale-out Gbit/s of one chip where the row's interconnect states it; 0 where it does not."""
    text = cells.text("interconnect")
    for pattern, shared in _FABRICS:
        found = pattern.search(text)
        if found:
            rate = float(found[1]) * (float(found[2]) if pattern.groups > 1 else 1.0)
            return rate / per_node if shared else rate
    return 0.0


def _outer(name: str, fabric: float) -> dict[str, Any]:
    """The outer tier at the stated rate; nothing when the system has none or the rate is the catalog's own."""
    tiers = system(name).tiers
    if not fabric or len(tiers) < 2 or isinstance(tiers[0].topology, Torus):
        return {}
    outer = tiers[1]
    if outer.bandwidth is not None and abs(outer.bandwidth.value - fabric * 1e9 / 8) < 1e6:
        return {}
    return {"tier": {outer.name: {"bandwidth": f"{fabric:g} Gbit/s"}}}
