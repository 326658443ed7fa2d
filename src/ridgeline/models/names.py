"""Turn a model's name, as papers, leaderboards and logs spell it, into a catalog id and what the name changes.

A name is tried as it stands; while the catalog does not know it, the first rule of `RULES` that applies takes one
suffix away. So a catalog alias always wins over a rule, and a name no rule can reach stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.catalog import Catalog
from ridgeline.core.errors import UnknownId
from ridgeline.core.records import dataclass
from ridgeline.models.dimensions import read_dimensions
from ridgeline.models.spec import ModelSpec

MODELS: Catalog[ModelSpec] = Catalog("model", Path(__file__).parent / "catalog", read_dimensions)
LONGEST = 200  # characters; nothing longer is a name
UNCHANGED: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way people decorate a name: what it means, the pattern it has, what to put in its place."""

    means: str
    pattern: re.Pattern[str]
    put: str = ""

    def apply(self, text: str) -> str:
        """The name without this decoration; the same text when it has none."""
        return self.pattern.sub(self.put, text).strip()


def _rule(means: str, pattern: str, put: str = "") -> Rule:
    return Rule(means=means, pattern=re.compile(pattern, re.IGNORECASE | re.ASCII), put=put)


RULES: tuple[Rule, ...] = (
    _rule("what the run was for, in brackets", r"\s*\([^()]*\)$"),
    _rule("two checkpoints of one shape", r"^(.*[\w.]+-?[a-z]\d+)/[a-z]\d+$", r"\1"),
    _rule("MLPerf accuracy target", r"-99(\.9)?$"),
    _rule("number format of the weights", r"[-_ ](bf16|fp16|fp8|fp4|nvfp4|mxfp4|mxfp8|int8|int4|awq|gptq|w4a16|w8a8)$"),
    _rule("checkpoint format", r"[-_ ](hf|dynamic|kv|eagle)$"),
    _rule("date of a checkpoint", r"[-_ ](0[1-9]|1[0-2]|2[4-6])\d\d$"),
    _rule("what it was tuned for", r"[-_ ](instruct|chat|base|it|pt|thinking|terminus|exp)(?=(-v[\d.]+)?$)"),
    _rule("context it was extended to", r"[-_ ]\d{1,4}k$"),
    _rule("version of a checkpoint", r"-v[\d.]+$"),
)
_TRUNCATED = re.compile(r"\s*,?\s*\(?truncated to (\d{1,4}) layers?\)?", re.IGNORECASE | re.ASCII)


def resolve_name(text: str) -> tuple[str, Mapping[str, int]]:
    """The catalog id a name means and the top-level dimensions it changes; `UnknownId` when there is none.

    >>> resolve_name("nvidia/Llama-3.1-8B-Instruct-FP8")
    ('llama3.1-8b', mappingproxy({}))
    >>> id, changed = resolve_name("Llama3.1-405B truncated to 8 layers (proxy)")
    >>> id, dict(changed)
    ('llama3.1-405b', {'layers': 8})
    """
    catalog_name = find_name(text)
    if catalog_name is None:
        raise UnknownId("model", text[:LONGEST], MODELS)
    return catalog_name


def find_name(text: str) -> tuple[str, Mapping[str, int]] | None:
    """As `resolve_name`, with None for a name that means no model of the catalog."""
    if len(text) > LONGEST or not text.isprintable():
        return None
    cut = _TRUNCATED.search(text)
    changes = MappingProxyType({"layers": int(cut.group(1))}) if cut else UNCHANGED
    name = (text[: cut.start()] + text[cut.end() :] if cut else text).strip()
    while name:
        id = MODELS.resolve(name)
        if id is not None:
            return id, changes
        name = next((shorter for rule in RULES if (shorter := rule.apply(name)) != name), "")
    return None
