"""Values that show themselves in a notebook: markup without scripts, with strangers' text escaped."""

from __future__ import annotations

import json
from pathlib import Path

import ridgeline

ROOT = Path(__file__).parents[3]


def test_values_show_themselves() -> None:
    scenario = ridgeline.read_scenario(ROOT / "examples" / "llama3-70b-64xh100.toml")
    study = ROOT / "examples" / "design-next-chip.toml"
    small = ["space.compute=['1 PFLOP/s','2 PFLOP/s']", "space.scaleup.domain=[8]"]
    values = (
        ridgeline.predict(scenario),
        ridgeline.sense(scenario),
        ridgeline.timeline(scenario),
        ridgeline.design(study, settings=small),
        ridgeline.report(study, team="chip"),
    )
    for value in values:
        markup = value._repr_html_()
        assert markup.startswith(("<pre", "<figure"))
        assert "<script" not in markup
        assert "http" not in markup


def test_the_example_notebook_is_executed_and_small() -> None:
    page = ROOT / "docs" / "how-to" / "co-design.ipynb"
    cells = [cell for cell in json.loads(page.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 4
    assert all("text/html" in cell["outputs"][0]["data"] for cell in cells)
    assert page.stat().st_size < 100_000
