"""Turn the recorded list of a target's documented options into a check of what an export writes.

A file `NAME-VERSION.toml` holds names only, gathered from the project's own source:

    target, version, source          which software, which version, where its options are documented
    flags = ["a", ...]               options that stand alone
    values = ["b", ...]              options that take a value
    [choices]                        option = the values it takes, where they are a closed list
    [aliases]                        another name = the option it stands for
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.core.errors import Problem, not_among
from ridgeline.core.files import read_table

FOLDER = Path(__file__).parent
LONG_FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}  # PyTorch's words, and JAX's


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedOptions:
    """The documented options of one version of a target."""

    target: str
    version: str
    source: str
    flags: frozenset[str]
    values: frozenset[str]
    choices: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str]

    @property
    def title(self) -> str:
        """The software and the version of it."""
        return f"{self.target} {self.version}"

    def problem(self, option: str, value: Any) -> Problem | None:
        """What is wrong with an option about to be written; True stands for a flag, False for its `no-` form."""
        name = option.lstrip("-")
        if (value is True and name in self.flags) or (value is False and f"no-{name}" in self.flags):
            return None
        if name not in self.values:
            option_names = sorted(self.flags | self.values)
            wrong = not_among(option, name, option_names)
            return Problem(path=option, given=repr(value), expected=f"an option of {self.title}", todo=wrong.todo)
        allowed_values = self.choices.get(name)
        if allowed_values is not None and str(value) not in allowed_values:
            return not_among(option, str(value), allowed_values)
        return None


@cache
def has_recorded_options(target: str) -> bool:
    """Whether a list of the target's options is recorded."""
    return any(FOLDER.glob(f"{target}-v*.toml"))


@cache
def options(target: str) -> DocumentedOptions:
    """The recorded list of a target: the one file named after it."""
    (path,) = FOLDER.glob(f"{target}-v*.toml")
    data = read_table(path).data
    return DocumentedOptions(
        target=data["target"],
        version=data["version"],
        source=data["source"],
        flags=frozenset(data.get("flags", ())),
        values=frozenset(data.get("values", ())),
        choices=MappingProxyType({key: tuple(map(str, words)) for key, words in data.get("choices", {}).items()}),
        aliases=MappingProxyType(data.get("aliases", {})),
    )
