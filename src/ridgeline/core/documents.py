"""Types of a JSON, TOML or YAML document as its parser returns it, before a reader gives its values a type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
"""An object (table) by key; a reader narrows each value before it uses it."""
JsonMapping = Mapping[str, Any]
"""The same, not to be changed."""
JsonValue = Any
"""A value of a document: an object, a list, a string, a number, true, false or null."""
