"""Who a fitted number belongs to: what cores sustain to a die, memory and links to the chip."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import MappingProxyType

import pytest

from ridgeline.calibrate.fit import never_slower
from ridgeline.core.errors import InputError
from ridgeline.cost.anchored import Components, anchored_from
from ridgeline.cost.calibration import PARAMETERS, Calibration, owners
from ridgeline.cost.machine import density_of
from ridgeline.hardware.load import CHIPS
from ridgeline.plan.engine import ENGINES

ENGINE = ENGINES["megatron-core"]


def test_chips_of_one_die_share_what_its_cores_sustain() -> None:
    """An A100 of 40 GB has the cores, clock and power of one of 80: a product takes as long, a copy does not."""
    fitted = Calibration(offsets=MappingProxyType({"matmul_wide/a100-80-sxm": -1.0, "memory/a100-80-sxm": -1.0}))
    small, large = CHIPS["a100-40-sxm"], CHIPS["a100-80-sxm"]
    assert fitted.value("matmul_wide", small, ENGINE) == fitted.value("matmul_wide", large, ENGINE)
    assert fitted.value("memory", small, ENGINE) == pytest.approx(PARAMETERS["memory"].default)
    assert fitted.value("memory", large, ENGINE) < PARAMETERS["memory"].default


def test_a_die_is_named_only_by_chips_with_its_peaks() -> None:
    named = {id: chip for id, chip in CHIPS.items() if chip.die}
    assert named
    for chip in named.values():
        whole = CHIPS[chip.die]
        assert chip.family == whole.family
        assert not whole.die
        assert chip.peak["fp16"].value == whole.peak["fp16"].value
        assert chip.cores is not None
        assert whole.cores is not None
        assert chip.cores.value == whole.cores.value


def test_a_copy_of_a_chip_keeps_its_die() -> None:
    mine = replace(CHIPS["h800-sxm"], id="mine")
    assert owners(mine, ENGINE).die == "h100-sxm"
    assert owners(replace(CHIPS["h100-sxm"], id="mine", calibrated_as=""), ENGINE).die == "mine"


def test_a_better_chip_is_raised_under_the_name_of_its_die() -> None:
    """Memory is raised under the chip's own name, products under that of the die, which both may have."""
    given = {"matmul_wide/a100-80-sxm": -1.0, "memory/a100-40-sxm": 1.0, "memory/a100-80-sxm": -3.0}
    made = never_slower(Calibration(offsets=MappingProxyType(given))).offsets
    assert made["matmul_wide/a100-80-sxm"] == -1.0
    assert "matmul_wide/a100-40-sxm" not in made


def test_a_family_that_nobody_measured_starts_at_what_its_peak_means() -> None:
    """TPUs hold the clock of their peak: 1.2 times the common share. A GH200 has 560 W of a limit that Grace shares."""
    bare = Calibration(offsets=MappingProxyType({}))
    common = PARAMETERS["matmul_wide"].default
    assert bare.value("matmul_wide", CHIPS["tpu-v5p"], ENGINES["maxtext"]) == pytest.approx(1.2 * common)
    assert bare.value("matmul_wide", CHIPS["gh200-96"], ENGINE) == pytest.approx(common)
    assert density_of(CHIPS["gh200-96"], "bf16") == pytest.approx(700 / 560)
    assert PARAMETERS["power"].spread < 1


def test_runs_anchored_before_dies_were_told_apart_are_read() -> None:
    run = {
        "id": "mine", "measured_s": 1.0, "predicted_s": 1.1, "gap": -0.1, "noise": 0.05, "weight": -1.0,
        "owners": ["hopper*", "h800-sxm", "cudnn@hopper", "nemo"],
        "shape": {"size": 1.0, "hidden": 1.0, "chips": 1.0, "seq": 1.0, "experts": False}, "slopes": {},
    }  # fmt: skip
    table = {"components": asdict(Components()), "runs": [run], "moved": {}}
    found = anchored_from(table, "mine.json").runs[0].sensitivity.owners
    assert found == ("hopper*", "h800-sxm", "h800-sxm", "cudnn@hopper", "nemo", "")
    with pytest.raises(InputError):
        anchored_from({**table, "runs": [run | {"owners": ["hopper*"]}]}, "mine.json")
