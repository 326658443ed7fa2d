"""The Python side of the verbs: each has its function, documented and typed, and wrong input is an `InputError`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.cli.verbs import VERBS
from ridgeline.core.errors import InputError, Problem

RENAMED = {"plan": "recommend", "import": "import_run"}  # `plan` is a package, `import` a keyword


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
