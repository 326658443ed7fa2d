"""A door offers the names of its stub and nothing else, and loads each when it is first asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def _package(folder: Path, name: str) -> None:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text(
        "from ridgeline.core.door import open_door\n\n__getattr__, __dir__, __all__ = open_door(__name__, __file__)\n"
    )
    (package / "__init__.pyi").write_text(
        f"from {name}.rooms import kitchen as kitchen\nfrom {name}.rooms import hall as corridor\n"
    )
    (package / "rooms.py").write_text("kitchen, hall = 1, 2\n")


def test_names_load_when_first_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, "a_house")
    monkeypatch.syspath_prepend(str(tmp_path))
    import a_house  # type: ignore[import-not-found]

    assert a_house.__all__ == ["kitchen", "corridor"]
    assert "a_house.rooms" not in sys.modules
    assert (a_house.kitchen, a_house.corridor) == (1, 2)
    assert dir(a_house) == ["corridor", "kitchen"]


def test_a_name_that_is_not_offered_is_an_attribute_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path, "b_house")
    monkeypatch.syspath_prepend(str(tmp_path))
    import b_house  # type: ignore[import-not-found]

    with pytest.raises(AttributeError, match="cellar"):
        b_house.cellar  # noqa: B018
