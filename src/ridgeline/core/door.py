"""Turn the stub of a package into its door: the names it offers, each loaded from its module when first asked for.

A package lists what it offers once, in `__init__.pyi`, which type checkers and editors read:

    from ridgeline.trace.timeline import Timeline as Timeline

Its `__init__.py` opens the door with that list, so that importing the package costs nothing and importing one name
costs the module it lives in:

    from ridgeline.core.door import open_door

    __getattr__, __dir__, __all__ = open_door(__name__, __file__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType


def answer_calls(package: str, module: str) -> None:
    """Make a package that has the name of a verb answer a call with it: the function of its name in `module`.

    `ridgeline.plan(...)` so is `ridgeline.api.plan`, whatever module of the package was imported before.
    """

    class VerbPackage(ModuleType):
        def __call__(self, *given: object, **options: object) -> object:
            return getattr(import_module(module), package.rpartition(".")[2])(*given, **options)

    sys.modules[package].__class__ = VerbPackage


def door_names(stub: Path) -> dict[str, tuple[str, str]]:
    """Name behind the door -> its module and its name there, in the order of the stub; `fit = refit` renames."""
    offers: dict[str, tuple[str, str]] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            offers |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign):
            offers[ast.unparse(node.targets[0])] = offers.pop(ast.unparse(node.value))
    return offers


def open_door(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose `__init__.pyi` stands beside `file`."""
    offers = door_names(Path(file).with_suffix(".pyi"))

    def load(name: str) -> object:
        if name not in offers:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = offers[name]
        value: object = getattr(import_module(module), attribute)
        if f"{package}.{name}" not in sys.modules:  # a package of that name stays what `import` makes of it
            setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(offers), list(offers)
