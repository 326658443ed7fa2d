"""Turn nested tables of plain values into the text of a YAML file."""

from __future__ import annotations

import yaml

from ridgeline.core.documents import JsonMapping
from ridgeline.core.encode import plain

WIDTH = 1000  # columns before a line is folded: never, for what is written here
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml writes the same text ten times as fast


def yaml_text(table: JsonMapping) -> str:
    """Keys in the order given; whatever YAML would read as something else is quoted.

    >>> print(yaml_text({"a": {"parts": ("mlp", "null")}, "scale": 1e-05, "name": 'say "hi": # no'}), end="")
    a:
      parts:
      - mlp
      - 'null'
    scale: 1.0e-05
    name: 'say "hi": # no'
    """
    return str(yaml.dump(plain(table), Dumper=DUMPER, sort_keys=False, width=WIDTH))


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as blocks, which people can read."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Blocks.add_representer(str, _text)


def manifest_text(table: JsonMapping) -> str:
    """As `yaml_text`, with texts of several lines written as blocks.

    >>> print(manifest_text({"run": "set -e\\nls\\n"}), end="")
    run: |
      set -e
      ls
    """
    return str(yaml.dump(plain(table), Dumper=_Blocks, sort_keys=False, width=WIDTH))
