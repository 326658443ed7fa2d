"""Stand-ins for packages that other software imports but that a check of its configuration does not use."""

from __future__ import annotations

import sys
import types
from abc import ABCMeta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


def _nothing(*_: Any, **__: Any) -> None:
    """Whatever is given, nothing happens."""


class _Kind(ABCMeta):
    """The type of stand-in classes: whatever is asked of one is a function that does nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


class _Module(types.ModuleType):
    """A module that has every name: capitals are classes, the others modules that can be called."""

    __version__ = "2.10.0"
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        plain = name.lstrip("_")[:1].islower()
        return _Module(f"{self.__name__}.{name}") if plain else _Kind(name, (), {"__init__": _nothing})

    def __call__(self, *given: Any, **_: Any) -> Any:
        """What is decorated stays as it is."""
        return given[0] if len(given) == 1 and callable(given[0]) else self


class Stubs(MetaPathFinder, Loader):
    """Finds a stand-in for each of the named packages and what is below them."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A specification of a stand-in, where one is wanted."""
        wanted = any(fullname == name or fullname.startswith(f"{name}.") for name in self.names)
        return ModuleSpec(fullname, self, is_package=True) if wanted else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """The stand-in."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""

    def install(self) -> None:
        """Ask this finder first."""
        sys.meta_path.insert(0, self)
