"""Write which types of transformers' models are read and captured: docs/concepts/architectures.md. Needs transformers.

    python docs/architectures.py                  every type, about half an hour on one core
    python docs/architectures.py TYPE ...         these rows anew, the others as the page has them
    python docs/architectures.py --check          fails where the page lacks a type, or names one that is gone

A type is read when its reader's count equals the parameters of the model that transformers builds from the type's
default config on the meta device, and captured when one forward of that model is recorded with the same count.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
PAGE = Path(__file__).parent / "concepts" / "architectures.md"
KINDS = {"CAUSAL_LM": "causal", "IMAGE_TEXT_TO_TEXT": "image-text", "MULTIMODAL_LM": "multimodal"}
LONGEST_S = 300
# defaults that transformers itself cannot build a model of, with what their published configs say instead
GIVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "xmod": {"default_language": "en_XX"},
}
HEAD = """# Which architectures are read and captured

`ridgeline` reads the config.json of a model without weights, network or transformers, where it has a reader for the
type. Any other type is captured: transformers builds it on the meta device and one forward is recorded
([capture your own model](../how-to/capture.md)). This page is written by `python docs/architectures.py`, which does
both for every causal, image-text and multimodal type of transformers {version}, with its default config.

- **read**: `exact` where the reader's parameters are those of the built model, `yes` where nothing could be built to
  compare with, `differs` where transformers' causal class of a type that is read whole builds its decoder alone.
  Published sizes are compared in `tests/real/test_transformers_params.py`.
- **captured**: one forward over text is recorded, with all parameters. `whole`: every layer is made of known parts;
  `parts`: something is priced op by op; `mixes`: tokens meet in a way that no known part has, so that tensor ranks do
  not split those layers.
- **refused**: why the other way is closed.

{summary}

| type | task | read | captured | refused |
|---|---|---|---|---|
"""


def types() -> dict[str, str]:
    """Every type with the tasks that transformers lists it under."""
    from transformers.models.auto import modeling_auto

    found: dict[str, list[str]] = {}
    for name, word in KINDS.items():
        for kind in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES"):
            found.setdefault(kind, []).append(word)
    return {kind: ", ".join(words) for kind, words in sorted(found.items())}


def standing(kind: str) -> tuple[str, str, str]:
    """Whether a type is read, how it is captured, and why not."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from ridgeline.core.errors import InputError
    from ridgeline.models.hf import READERS, from_config
    from ridgeline.models.params import count
    from ridgeline.runtime.capture import capture_config

    try:
        data = json.loads(CONFIG_MAPPING[kind](**GIVEN.get(kind, {})).to_json_string(use_diff=False))
        found = capture_config(data | {"model_type": kind})
        captured, refused = _how(found), ""
    except Exception as wrong:
        found, captured, refused = None, "", _short(wrong)
    if kind not in READERS:
        return "", captured, refused
    try:
        ours = count(from_config(data | {"model_type": kind}))
        exact = found is None or count(found).total in (ours.total, ours.total - ours.vision)
        return "exact" if exact and found else "yes" if found is None else "differs", captured, refused
    except InputError as wrong:
        return "not this config", captured, refused or _short(wrong)


def _how(spec: Any) -> str:
    blocks = [block.captured for block in spec.blocks if block.captured]
    return "mixes" if any(one.mixes for one in blocks) else "parts" if blocks else "whole"


def _short(wrong: Exception) -> str:
    text = " ".join(str(wrong).split()).replace("|", "/")
    return re.sub(r"^(module|model|config): got ", "", text)[:140]


def within(kind: str) -> tuple[str, str, str]:
    """The same within a time limit."""

    def late(*_: object) -> None:
        raise TimeoutError(f"a forward that takes over {LONGEST_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST_S)
    try:
        return standing(kind)
    except TimeoutError as wrong:
        return "", "", str(wrong)
    finally:
        signal.alarm(0)


def rows_of(text: str) -> dict[str, tuple[str, str, str]]:
    """The rows that a page has."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "type":
            found[cells[0]] = (cells[2], cells[3], cells[4])
    return found


def page(rows: dict[str, tuple[str, str, str]]) -> str:
    """The whole page."""
    import transformers

    known = types()
    rows = {kind: rows[kind] for kind in known if kind in rows}
    lines = []
    for word in KINDS.values():
        own = [rows[kind] for kind, tasks in known.items() if word in tasks.split(", ") and kind in rows]
        read = sum(one[0] in ("exact", "yes") for one in own)
        either = sum(one[0] in ("exact", "yes") or bool(one[1]) for one in own)
        lines.append(
            f"{len(own)} {word} types: {read} read, {sum(bool(one[1]) for one in own)} captured, {either} either."
        )
    body = [f"| {kind} | {known[kind]} | {' | '.join(rows[kind])} |\n" for kind in rows]
    return HEAD.format(version=transformers.__version__, summary="  \n".join(lines)) + "".join(body)


def main() -> None:
    """Write the page, some rows of it, or check it."""
    import transformers

    transformers.logging.set_verbosity_error()
    named = sys.argv[1:]
    old = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    if named == ["--check"]:
        sys.exit(0 if set(old) == set(types()) else f"{PAGE.name} is out of date: python docs/architectures.py")
    for kind in named or types():
        old[kind] = within(kind)
        print(kind, *old[kind], file=sys.stderr, flush=True)
        PAGE.write_text(page(old), encoding="utf-8")


if __name__ == "__main__":
    main()
