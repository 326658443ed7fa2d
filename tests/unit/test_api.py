"""The Python side of the verbs: each has its function, documented and typed, and wrong input is an `InputError`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.cli.verbs import VERBS
from ridgeline.core.errors import InputError, Problem

RENAMED = {"import": "import_run"}  # a keyword
CALLED = {"graph", "plan", "design", "report"}  # packages that are called as the verb of their name


def test_every_verb_is_a_function() -> None:
    assert {RENAMED.get(verb, verb) for verb in VERBS} <= set(ridgeline.__all__)


@pytest.mark.parametrize("name", [name for name in ridgeline.__all__ if name != "__version__"])
def test_every_name_is_there_with_a_docstring_and_types(name: str) -> None:
    found: Any = getattr(ridgeline, name)
    assert found.__doc__ or not callable(found)
    if inspect.isfunction(found):
        annotations = inspect.signature(found)
        assert annotations.return_annotation is not inspect.Signature.empty
        assert all(part.annotation is not inspect.Parameter.empty for part in annotations.parameters.values())


def test_importing_ridgeline_loads_nothing_else() -> None:
    told = "import sys, ridgeline; print(*sorted(name for name in sys.modules if name.startswith('ridgeline')))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ridgeline", "ridgeline.core", "ridgeline.core.door"]


@pytest.mark.parametrize(
    "first",
    [
        "import ridgeline",
        "import ridgeline.targets.dialects.megatron.write",
        "from ridgeline.targets.registry import TARGETS",
    ],
)
def test_export_is_a_function_whatever_was_imported_first(first: str) -> None:
    """A package of that name would take the function's place as soon as one of its modules is imported."""
    code = (
        f"{first}\n"
        "import types, ridgeline\n"
        "assert type(ridgeline.export) is types.FunctionType\n"
        "from ridgeline.targets.decisions import decisions_of\n"
        "made = ridgeline.scenario({'model': 'llama3-8b', 'system': '8xh100-sxm', 'workload': {'seq': 8192,"
        " 'global_batch': 64}, 'plan': {'tp': 2}})\n"
        "assert ridgeline.export(made, to='megatron').expressed['plan.tp'] == '--tensor-model-parallel-size'\n"
        "assert type(ridgeline.export) is types.FunctionType\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_package_has_the_name_of_a_public_function() -> None:
    """Importing a submodule binds its package in `ridgeline`, over a function of the same name."""
    packages = {path.parent.name for path in Path(ridgeline.__file__).parent.glob("*/__init__.py")}
    assert packages & set(ridgeline.__all__) == CALLED


@pytest.mark.parametrize("first", ["import ridgeline", "import ridgeline.plan.scenario_file as file"])
def test_plan_can_be_called_whatever_was_imported_first(first: str) -> None:
    code = (
        f"{first}\n"
        "import inspect, ridgeline\n"
        "from ridgeline.core.errors import InputError\n"
        "try:\n    ridgeline.plan('llama3-8b', serve=True, rate=1.0)\n"
        "except InputError as wrong:\n    assert '--on' in str(wrong), wrong\n"
        "else:\n    raise AssertionError\n"
        "from ridgeline.plan.mesh import Mesh\n"
        "assert ridgeline.plan.mesh.Mesh is Mesh and callable(ridgeline.plan)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_docstring_names_what_is_exported() -> None:
    listed = ridgeline.__doc__ or ""
    types = {"Impossible", "Plan", "PlanRequest", "Prediction", "Scenario", "__version__"}
    assert [name for name in ridgeline.__all__ if name not in listed and name not in types] == []
    assert (Path(ridgeline.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("chip", ("h100-smx",)),
        ("system", ("8xh100-smx",)),
        ("model", ("lama3-8b",)),
        ("engine", ("megatorn",)),
        ("show", ("h100-smx",)),
        ("scenario", ({"modle": "x"},)),
        ("read_scenario", ("absent.toml",)),
        ("validate", ("absent.csv",)),
        ("import_run", ("absent.sh",)),
        ("read_timeline", ("absent.json",)),
        ("analyze", ("absent.json",)),
        ("diff", ("absent.json", "absent.json")),
    ],
)
def test_wrong_input_carries_its_problems(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InputError) as caught:
        getattr(ridgeline, name)(*arguments)
    assert caught.value.problems
    assert all(isinstance(problem, Problem) and problem.expected for problem in caught.value.problems)


def test_an_absent_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        ridgeline.plans  # type: ignore[attr-defined]  # noqa: B018


def test_analyze_takes_what_is_no_trace_as_the_command_line_does(tmp_path: Path) -> None:
    import exports

    from ridgeline.trace.read.kernel_counters import CounterFile

    table = tmp_path / "ncu.csv"
    table.write_text(exports.RAW, encoding="utf-8")
    assert isinstance(ridgeline.analyze(table), CounterFile)
    assert isinstance(ridgeline.analyze(str(table)), CounterFile)
