"""The page of architectures says of every type that it is read or captured, and with which keys."""

from __future__ import annotations

from types import ModuleType

import pytest

from tools.docs import architectures


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """The program that writes the page."""
    return architectures


def test_every_type_is_read_or_captured(writer: ModuleType) -> None:
    rows = writer.rows_of(writer.PAGE.read_text(encoding="utf-8"))
    assert len(rows) > 270
    closed = [kind for kind, row in rows.items() if row.read not in ("exact", "yes") and not row.captured]
    assert closed == []
    assert {kind for kind, row in rows.items() if "given" in row.note} == set(writer.GIVEN) & set(rows)
    assert set(writer.GIVEN) | set(writer.NEEDS) <= set(rows)
    assert sum(row.read == "exact" for row in rows.values()) > 120


def test_given_keys_are_merged_table_by_table_and_named(writer: ModuleType) -> None:
    default = {"hidden_size": 8, "text_config": {"head_dim": None, "rope_parameters": {"rope_theta": 1.0}}}
    given = {"text_config": {"head_dim": 4, "rope_parameters": {"mrope_section": [2]}}}
    merged = writer._merge(default, given)
    assert merged["hidden_size"] == 8
    assert merged["text_config"] == {"head_dim": 4, "rope_parameters": {"rope_theta": 1.0, "mrope_section": [2]}}
    assert writer._key_names(given) == "`text_config.head_dim`, `text_config.rope_parameters.mrope_section`"
