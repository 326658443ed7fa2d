"""Turn nested tables of plain values into the text of a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ridgeline.core.encode import plain

WIDTH = 1000  # columns before a line is folded: never, for what is written here


def yaml_text(table: Mapping[str, Any]) -> str:
    """Keys in the order given; whatever YAML would read as something else is quoted.

    >>> print(yaml_text({"a": {"parts": ("mlp", "null")}, "scale": 1e-05, "name": 'say "hi": # no'}), end="")
    a:
      parts:
      - mlp
      - 'null'
    scale: 1.0e-05
    name: 'say "hi": # no'
    """
    return str(yaml.safe_dump(plain(table), sort_keys=False, width=WIDTH))
