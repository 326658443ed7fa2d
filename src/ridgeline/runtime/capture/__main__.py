"""Capture a model in a process of its own: a request as JSON on stdin, the model's table or its problems on stdout.

    {"config": {...}, "id": "name"}          a config of transformers
    {"reference": "file.py:function"}        a function of the user's that returns (module, example_inputs)

What the user's code prints goes to stderr.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.dimensions import dimensions_of
from ridgeline.models.spec import ModelSpec


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        answer: JsonObject = {"table": dimensions_of(_capture_request(json.load(sys.stdin)))}
    except InputError as wrong:
        answer = {"problems": [asdict(problem) for problem in wrong.problems]}
    except Exception as wrong:
        message = f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:200]}"
        expected_text = "a model whose forward can be recorded"
        answer = {"problems": [asdict(Problem(path="model", given=message, expected=expected_text))]}
    out.write(json.dumps(answer))


def _capture_request(request: JsonObject) -> ModelSpec:
    from ridgeline.runtime.capture import capture, capture_config

    if "reference" in request:
        from ridgeline.runtime.bringup.subject import made_module
        from ridgeline.runtime.bringup.target import OwnModule

        reference = str(request["reference"])
        with _elsewhere():
            module, inputs = made_module(OwnModule(reference=reference))
        return capture(module, inputs, id=reference.rpartition(":")[2])
    return capture_config(request["config"], id=str(request.get("id", "")))


def _elsewhere() -> AbstractContextManager[object]:
    """The meta device in the place of an accelerator that is not there; of one that is, itself."""
    import torch

    from ridgeline.runtime.capture.recording import Elsewhere

    return nullcontext() if torch.accelerator.is_available() else Elsewhere()


if __name__ == "__main__":
    main()
