"""One row of the table is all that an algorithm needs: every answer that could use it follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.comm import select
from ridgeline.comm.algorithm import Candidate, CollectiveTask
from ridgeline.comm.closed_form.links import plain_links
from ridgeline.comm.closed_form.terms import ClosedForm, RankGroup, Terms
from ridgeline.comm.libraries.choice import library_choice
from ridgeline.comm.library import candidates as builders
from ridgeline.comm.library import table
from ridgeline.comm.library.table import ALGORITHMS, ROWS, AlgorithmRow, closed_forms, row_of_alias
from ridgeline.comm.topologies import topology
from ridgeline.comm.verify import verify_algorithm
from ridgeline.cost import collectives
from ridgeline.cost.library_times.formulas import NCCL_FORMS


def test_names_are_unique_and_every_row_is_used() -> None:
    assert len(ALGORITHMS) == len(ROWS)
    aliases = [alias for row in ROWS for alias in row.aliases]
    assert len(aliases) == len(set(aliases))
    for row in ROWS:
        assert row.closed_forms or row.steps, row.name
        assert bool(row.serves) == bool(row.steps), row.name


def test_every_row_with_steps_builds_a_right_algorithm_somewhere() -> None:
    graphs = [topology(name, 50e9, 5e-7) for name in ("torus:4x4", "domains:4x4", "sharp:8")]
    graphs.append(replace(graphs[1], groups=(6, 10)))
    for row in ROWS:
        for collective in row.serves:
            build = getattr(builders, row.steps)
            forms = [form for graph in graphs for form in build(CollectiveTask(graph, collective), row.name)]
            assert forms, (row.name, collective)
            assert all(form.name == row.name for form in forms)
            assert verify_algorithm(forms[0].make()).ok, (row.name, collective)


@pytest.mark.parametrize(("on", "library"), [("64xh100-sxm", "nccl"), ("16xmi300x", "rccl")])
def test_tuners_and_benchmarks_speak_of_algorithms_of_the_table(on: str, library: str) -> None:
    for option in library_choice("allreduce", on=on, library=library).options:
        name = option.algorithm.removesuffix("_tree")
        assert name in ALGORITHMS or row_of_alias(name), option.algorithm
    assert set(NCCL_FORMS) <= set(ALGORITHMS)


def test_a_new_row_changes_the_ideal_time_and_the_price_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with the steps of a ring and a closed form of a nanosecond wins both."""

    def telepathy(task: CollectiveTask, name: str) -> Iterator[Candidate]:
        yield from (replace(form, name=name) for form in builders.line_gather(task, "ring"))

    def terms(group: RankGroup) -> Terms:
        nothing = np.zeros_like(group.ranks)
        return Terms(scale_up=nothing, scale_out=0.0, slice=nothing, once=1e-9)

    form = ClosedForm(terms=terms, offer=lambda group: True)
    row = AlgorithmRow(name="telepathy", serves=("allgather",), steps="telepathy", closed_forms={"all-gather": form})
    rows: Any = (*ROWS, row)
    monkeypatch.setattr(select, "ROWS", rows)
    monkeypatch.setattr(table, "ROWS", rows)
    monkeypatch.setattr(builders, "telepathy", telepathy, raising=False)
    assert "telepathy" in {one.name for one in select.candidates("allgather", topology("ring:4", 50e9, 5e-7))}
    monkeypatch.setattr(collectives, "CLOSED_FORMS", {collectives.ALL_GATHER: closed_forms("all-gather")})
    ones = np.ones(1)
    links = plain_links(1e9, 1e9, 8.0)
    assert collectives.collective_seconds(collectives.ALL_GATHER, 1e9 * ones, 8 * ones, ones, links)[0] == 1e-9
