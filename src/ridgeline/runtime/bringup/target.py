"""What may be brought up: an architecture, or a torch module of the user's. No torch is needed to name either."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import model as read_model
from ridgeline.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModule:
    """A torch module: `package.module:function` or `file.py:function` that makes it, or itself and its inputs.

    pickled   the module and its inputs, for another process
    held      the same, for this one
    """

    reference: str
    pickled: bytes = b""
    held: Any = None

    @property
    def portable(self) -> bool:
        """Whether another process can make it."""
        return bool(self.pickled) or self.held is None

    @property
    def id(self) -> str:
        """How it is called in a report."""
        return self.reference


Target = ModelSpec | OwnModule


def target_of(given: Any, example_inputs: Any = None) -> Target:
    """What a command line or a caller named."""
    if isinstance(given, ModelSpec | OwnModule):
        return given
    if isinstance(given, str) and ":" in given and given.rpartition(":")[2].isidentifier():
        return OwnModule(reference=given)
    if not hasattr(given, "named_parameters"):
        return read_model(given)
    if example_inputs is None and getattr(given, "example_inputs", None) is None:
        expected_text = "example_inputs: a tensor, a tuple or a dict that the module is called with"
        raise InputError(Problem(path="example_inputs", given="none", expected=expected_text))
    return OwnModule(
        reference=type(given).__name__, pickled=_pickle_module(given, example_inputs), held=(given, example_inputs)
    )


def _pickle_module(module: Any, inputs: Any) -> bytes:
    """Both as bytes; none where pickle cannot, or another process would not find their classes."""
    if type(module).__module__ == "__main__":
        return b""
    try:
        return pickle.dumps((module, inputs))
    except Exception:
        return b""
