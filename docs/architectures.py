"""Write which types of transformers' models are read: docs/concepts/architectures.md. Needs transformers and torch.

    python docs/architectures.py [--check]        --check fails where the page is out of date

A type is read exactly when its reader's count equals the parameters of the model that transformers builds from the
type's default config on the meta device.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
PAGE = Path(__file__).parent / "concepts" / "architectures.md"
HEAD = """# Which architectures are read

`ridgeline` reads the config.json of a model, without weights, network or transformers. This page is written by
`python docs/architectures.py`, which builds every causal language model that transformers {version} knows from its
default config on the meta device and compares the number of parameters. Published sizes and keys left out are compared
in `tests/real/test_transformers_params.py`.

"""


def standing() -> dict[str, str]:
    """Every causal type with how it stands: exact, differs, refused and why, not built, not read."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from ridgeline.core.errors import InputError
    from ridgeline.models.hf import READERS, from_config
    from ridgeline.models.params import count

    transformers.logging.set_verbosity_error()
    found: dict[str, str] = {}
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if kind not in READERS:
            found[kind] = "not read"
            continue
        try:
            config = CONFIG_MAPPING[kind]()
            with torch.device("meta"):
                built = AutoModelForCausalLM.from_config(config)
        except Exception:
            found[kind] = "read; its default config cannot be built"
            continue
        theirs = sum(tensor.numel() for tensor in built.parameters() if tensor.requires_grad)
        try:
            saved = json.loads(config.to_json_string(use_diff=False)) | {"model_type": kind}
            spec = from_config(saved)
        except InputError:
            found[kind] = "read; its default config is refused"
            continue
        ours = count(spec)
        exact = theirs in (ours.total, ours.total - ours.vision)  # images may be left out of the built one
        found[kind] = "exact" if exact else "differs"
    return found


def page() -> str:
    """The whole page."""
    import transformers

    from ridgeline.models.hf import READERS

    found = standing()
    lines = [HEAD.format(version=transformers.__version__)]
    others = sorted(set(READERS) - set(found))
    lines.append(f"{len(READERS)} types are read.\n\n| standing | types | |\n|---|---|---|\n")
    for word in sorted(set(found.values())):
        own = [kind for kind, stands in found.items() if stands == word]
        lines.append(f"| {word} | {len(own)} | {', '.join(own)} |\n")
    lines.append(
        f"| read, beside these: texts inside others, models with images | {len(others)} | {', '.join(others)} |\n"
    )
    return "".join(lines)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == text else f"{PAGE.name} is out of date: python docs/architectures.py")
    PAGE.write_text(text)
