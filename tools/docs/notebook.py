"""Write the example notebook with what its cells answer: `python -m tools.docs.notebook`.

No kernel is needed: cells are executed here, and a value that shows itself in a notebook is stored as that markup.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "co-design.ipynb"
CELLS = (
    ("markdown", "# Co-design in a notebook\n\nPredictions, sensitivities, frontiers and reports show themselves."),
    (
        "code",
        "import ridgeline\n\n"
        'scenario = ridgeline.read_scenario("examples/llama3-70b-64xh100.toml")\nridgeline.predict(scenario)',
    ),
    ("markdown", "What limits a decode of the same model, and what is one per cent of each number worth?"),
    ("code", 'ridgeline.sense("examples/llama3-70b-decode-4xh100.toml")'),
    ("markdown", "Which chips does no other beat, for a mix of training and serving?"),
    ("code", 'ridgeline.design("examples/design-next-chip.toml", meet="tpot<=12ms")'),
    ("markdown", "And what should the network team be asked?"),
    ("code", 'ridgeline.report("examples/design-next-chip.toml", team="network")'),
)  # fmt: skip


def notebook() -> dict[str, Any]:
    """The notebook, executed."""
    scope: dict[str, Any] = {}
    cells = [_cell(kind, text, scope, place) for place, (kind, text) in enumerate(CELLS)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, text: str, scope: dict[str, Any], place: int) -> dict[str, Any]:
    head = {"cell_type": kind, "id": f"cell-{place}", "metadata": {}, "source": text.splitlines(keepends=True)}
    if kind == "markdown":
        return head
    body = ast.parse(text).body
    last = body.pop()
    exec(compile(ast.Module(body=body, type_ignores=[]), "cell", "exec"), scope)
    assert isinstance(last, ast.Expr)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
    data = {"text/html": value._repr_html_().splitlines(keepends=True), "text/plain": [type(value).__name__]}
    number = place // 2 + 1
    answer = {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}}
    return {**head, "execution_count": number, "outputs": [answer]}


def main() -> None:
    text = json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n"
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.relative_to(PAGE.parents[2])}: {len(text) / 1000:.0f} KB")


if __name__ == "__main__":
    main()
