"""What tensor ranks exchange around a layer, who waits for whom, and what travels to the next stage, by hand."""

import numpy as np
import pytest

import ridgeline
from ridgeline.cost import default_calibration
from ridgeline.cost.pricing import OpTable, SustainedRates
from ridgeline.ir.ops import Collective
from ridgeline.ir.program import PASSES, Section, SectionRole
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.stage_times import section_times, tensor_share

RUN = {"model": "llama2-13b", "system": "16xa100-80-sxm", "workload": {"seq": 2048, "global_batch": 16}}


def scenario_of(**plan: object) -> Scenario:
    return ridgeline.scenario(RUN | {"plan": {"tp": 4, "pp": 2, "dp": 2, "engine": "megatron-core", **plan}})


def layer_of(scenario: Scenario) -> Section:
    sections = lower(scenario, tensors=False).sections
    return next(section for section in sections if section.role is SectionRole.BLOCK)


def collectives_of(section: Section, flag: str = "") -> dict[str, int]:
    ops = {name: getattr(section, name) for name in PASSES}
    return {
        name: sum(isinstance(op, Collective) and (not flag or getattr(op, flag) > 0) for op in each)
        for name, each in ops.items()
    }


@pytest.mark.parametrize(
    ("sequence_parallel", "all_of_them", "beside"),
    [(True, (4, 6, 0, 0), (0, 4, 0, 0)), (False, (2, 2, 0, 0), (0, 2, 0, 0))],
)
def test_four_of_ten_or_two_of_four_collectives_travel_beside_products(
    sequence_parallel: bool, all_of_them: tuple[int, ...], beside: tuple[int, ...]
) -> None:
    layer = layer_of(scenario_of(sequence_parallel=sequence_parallel))
    assert tuple(collectives_of(layer).values()) == all_of_them
    assert tuple(collectives_of(layer, "beside").values()) == beside


def test_ranks_meet_four_times_a_layer_with_or_without_sequence_parallelism() -> None:
    """A gather follows a scatter with a norm between: nobody is late again. Those beside products count as meetings."""
    for sequence_parallel, aligned in ((True, 4), (False, 0)):
        layer = layer_of(scenario_of(sequence_parallel=sequence_parallel))
        assert sum(collectives_of(layer, "aligned").values()) == aligned


def priced(scenario: Scenario) -> tuple[np.ndarray, np.ndarray, float]:
    """Seconds of tensor-parallel communication of an input gradient: all, shown, and the share that can hide."""
    layer, plans = layer_of(scenario), plan_columns([scenario])
    rates = SustainedRates.of_scenario(default_calibration(), scenario, plans)
    table = OpTable.of([type(lower(scenario, tensors=False))(sections=(layer,), stages=())])
    sections = rates.price_sections(table)
    shown = section_times(sections, plans, rates).parts[4, 1]
    share = float(np.broadcast_to(tensor_share(sections, plans), (4, 1))[1, 0])
    return sections.seconds[4, 1], shown, share


def test_software_that_overlaps_nothing_shows_all_of_it() -> None:
    alone, shown, share = priced(scenario_of(engine="megatron-2021", sequence_parallel=True))
    assert share == 0
    assert shown == pytest.approx(alone)


def test_megatron_hides_what_runs_beside_products_without_being_told() -> None:
    scenario = scenario_of(sequence_parallel=False)
    alone, shown, share = priced(scenario)
    hidden = default_calibration().value("hidden_tp", scenario.system.chip, scenario.engine)
    contention = default_calibration().value("contention", scenario.system.chip, scenario.engine)
    beside = share * hidden
    assert share == pytest.approx(1.0)  # without sequence parallelism both sums of the input gradient travel so
    assert float(shown[0]) == pytest.approx(float(alone[0]) * (1 - beside + contention * beside), rel=1e-6)


def test_sequence_parallelism_decides_what_a_stage_sends() -> None:
    """tokens h 2 bytes to the next stage, an equal share from each tensor rank only where tokens are split."""
    whole = 2048 * 5120 * 2
    for sequence_parallel, engine, sent in (
        (True, "megatron-core", whole / 4), (False, "megatron-core", whole), (False, "megatron-2021", whole / 4),
    ):  # fmt: skip
        plans = plan_columns([scenario_of(sequence_parallel=sequence_parallel, engine=engine)])
        assert float(plans.boundary_bytes[0]) == sent


def test_norms_op_by_op_read_and_write_as_often_as_measured() -> None:
    """27 and 58 passes over h tokens of 2 bytes, two norms a layer, against 2 and 4 in one kernel."""
    elements = 2048 * 5120 * 2
    for fuses, passes in (("norm",), 2 + 4), ((), 27 + 58):
        scenario = ridgeline.scenario(
            RUN
            | {
                "plan": {"tp": 4, "pp": 2, "dp": 2, "sequence_parallel": False},
                "engine": {"base": "megatron-core", "id": "ours", "fuses": [*fuses, "optimizer"]},
            }
        )
        layer = layer_of(scenario)
        moved = sum(
            float(np.asarray(op.stream_bytes))
            for op in (*layer.forward, *layer.backward_input)
            if op.label in ("norm", "norm dX")
        )
        assert moved == pytest.approx(2 * passes * elements)
