"""Each verb in one line and by example, as `ridgeline --help` and `ridgeline VERB --help` print them: `verbs.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What a verb answers in one line of 80 columns, command lines that show it, and the function that answers it.

    module, function   where that is in this package; a function has the name of its verb unless it says another
    """

    module: str
    summary: str
    examples: tuple[str, ...]
    function: str = ""

    @property
    def epilog(self) -> str:
        """The end of its help."""
        return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in self.examples)


def _read_verbs() -> Mapping[str, Verb]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    verbs = {name: Verb(**table | {"examples": tuple(table["examples"])}) for name, table in tables.items()}
    return MappingProxyType(verbs)


VERBS = _read_verbs()
