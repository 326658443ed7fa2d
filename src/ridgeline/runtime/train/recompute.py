"""Compute again on the way back what was not saved on the way there (torch.utils.checkpoint)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def maybe_recompute(function: Callable[..., Tensor], *inputs: Tensor, again: bool) -> Tensor:
    """The function of its inputs, saving nothing but those where it is computed again."""
    if not again or not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
