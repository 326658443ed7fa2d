"""Where a prediction does not fit, its first line says so; a plan or a deployment that fits nowhere is refused."""

from __future__ import annotations

import sys

import pytest

import ridgeline
from ridgeline.cli.main import main
from ridgeline.sim.phase_prediction import PhasePrediction

TRAIN = "examples/llama3-70b-64xh100.toml"
DECODE = "examples/llama3-70b-decode-4xh100.toml"
PREFILL = "examples/deepseek-v3-prefill-8xh200.toml"
SERVE = "examples/serve-llama3.1-8b-1xh100.toml"


def lines(*words: str) -> tuple[int, list[str], str]:
    """Exit code, what was printed, and what was said on standard error."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["ridgeline", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), out.getvalue().splitlines(), err.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ("predict", TRAIN, "--set", "plan.tp=4", "--set", "plan.pp=4"),
        ("predict", DECODE, "--set", "system=1xh100-sxm", "--set", "plan.tp=1", "--set", "plan.precision=bf16"),
        ("predict", DECODE, "--set", "workload.batch=4096", "--set", "workload.context=8192"),
        ("predict", PREFILL, "--set", "plan.precision=bf16"),
    ],
)
def test_the_first_line_of_a_prediction(words: tuple[str, ...]) -> None:
    code, printed, _ = lines(*words)
    assert code == 0
    assert printed[0].startswith("does not fit: ")
    assert not any(line.startswith("bill ") for line in printed)


def test_the_first_line_of_a_difference() -> None:
    _, printed, _ = lines("diff", TRAIN, "--set", "plan.tp=4", "--set", "plan.pp=4")
    assert printed[0] == "B does not fit in memory; its time is what it would take if it did"


@pytest.mark.parametrize(
    "words",
    [
        ("predict", SERVE, "--set", "model=llama3-70b"),
        ("diff", SERVE, "--set", "model=llama3-70b"),
        ("plan", "llama3-70b", "--on", "1xh100-sxm"),
        ("plan", "llama3-405b", "--on", "1xh100-sxm", "--serve", "--rate", "1", "--isl", "100", "--osl", "10"),
    ],
)
def test_what_fits_nowhere_is_refused(words: tuple[str, ...]) -> None:
    code, printed, said = lines(*words)
    assert (code, printed) == (2, [])
    assert "GiB" in said


@pytest.mark.parametrize("kind", ["decode", "prefill", "serve"])
@pytest.mark.parametrize("precision", ["fp8", "nvfp4", "int8"])
def test_a_narrow_precision_means_the_weights_where_an_engine_serves(kind: str, precision: str) -> None:
    """fp8 means what vLLM and SGLang mean by it; a table of one's own keeps its say, and training its weights."""
    system = "8xb200-sxm"
    load = {"serve": {"arrivals": {"kind": "constant", "rate": 1}, "requests": 4, "isl": 64, "osl": 4},
            "decode": {"context": 1024}, "prefill": {"seq": 1024}}[kind]  # fmt: skip
    table = {"model": "llama3-70b", "system": system, "workload": {"kind": kind, **load}}
    narrow = ridgeline.scenario({**table, "plan": {"tp": 8, "precision": precision}})
    own = ridgeline.scenario({**table, "plan": {"tp": 8, "precision": {"name": precision, "weights": "bf16"}}})
    assert narrow.plan.precision.weights == narrow.plan.precision.compute
    assert any(note.startswith("weights ") for note in narrow.assumptions)
    assert own.plan.precision.weights.id == "bf16"
    if kind != "serve":
        half, whole = ridgeline.predict(narrow), ridgeline.predict(own)
        assert isinstance(half, PhasePrediction)
        assert isinstance(whole, PhasePrediction)
        assert half.memory.weights < 0.65 * whole.memory.weights


def test_a_decode_is_not_planned_as_training() -> None:
    code, _, said = lines("plan", DECODE)
    assert code == 2
    assert "got decode, expected train" in said
    assert ridgeline.scenario_of(
        "llama3-8b", on="1xh100-sxm", settings=["workload.kind=decode", "workload.context=1024"]
    ).plan.engine == "vllm"  # fmt: skip
