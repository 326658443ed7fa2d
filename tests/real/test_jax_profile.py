"""Steps that JAX itself profiled on the CPU: both files it writes give the ops it ran, in their steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from ridgeline.trace import Timeline  # noqa: E402
from ridgeline.trace.analyze_traces import analyze  # noqa: E402
from ridgeline.trace.read.readers import read_timeline  # noqa: E402

STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three annotated steps of a small network, profiled; the folder with the files."""
    jnp = jax.numpy

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x**2).mean()

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        return [one - 0.1 * slope for one, slope in zip(weights, jax.grad(loss)(weights, x), strict=True)]

    weights = [jax.random.normal(jax.random.key(place), (128, 128)) for place in range(3)]
    x = jnp.ones((64, 128))
    weights = jax.block_until_ready(step(weights, x))
    where = tmp_path_factory.mktemp("jax")
    with jax.profiler.trace(str(where), create_perfetto_trace=True):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                weights = jax.block_until_ready(step(weights, x))
    (run,) = (where / "plugins" / "profile").iterdir()
    return run


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json.gz"))


def read(folder: Path) -> Timeline:
    return read_timeline(next(path for path in files(folder) if not path.name.startswith("perfetto")))


def test_both_files_are_the_same_timeline(folder: Path) -> None:
    one, other = (read_timeline(path) for path in files(folder))
    assert one.about.format == other.about.format == "XLA trace JSON"
    assert np.array_equal(one.start_ns, other.start_ns)
    assert one.about.warnings == ()


def test_ops_are_the_work_of_a_chip(folder: Path) -> None:
    """As many as the file has spans with an HLO op, with their time."""
    line = read(folder)
    path = next(path for path in files(folder) if not path.name.startswith("perfetto"))
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    held = [event for event in events if event.get("ph") == "X" and "hlo_op" in event.get("args", {})]
    work = np.flatnonzero(line.is_work)
    assert len(held) == len(work) > 10
    assert sorted(line.names[code] for code in line.name[work]) == sorted(event["name"] for event in held)
    lasted = (line.end_ns - line.start_ns)[work].sum() / 1000
    assert lasted == pytest.approx(sum(event["dur"] for event in held), abs=0.01)
    assert {line.processes[code] for code in line.process[work].tolist()} == {"rank 0 chip 0"}


def test_steps_are_those_of_the_annotations(folder: Path) -> None:
    line = read(folder)
    steps, count = np.unique(line.step[line.is_work], return_counts=True)
    assert steps.tolist() == list(range(STEPS))
    assert len(set(count.tolist())) == 1  # every step runs the same ops


def test_it_is_analysed_once_from_the_folder_that_was_given(folder: Path) -> None:
    found = analyze(folder.parents[2])
    assert {"elementwise"} <= {one.id for one in found.breakdown.classes}
    assert found.critical is not None
    assert len(found.breakdown.steps) == STEPS
