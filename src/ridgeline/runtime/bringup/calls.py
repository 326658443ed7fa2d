"""One call of an op with inputs of the host, and where such inputs come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

HERE = torch.device("meta", 7)  # stands for the device that is probed, in a call's arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One op with arguments on the host; `why` says what its input is there for.

    optional    not every device has it: one that raises lacks it, and is not wrong
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    why: str = "ordinary"
    phase: str = "forward"
    optional: bool = False


class Numbers:
    """Inputs of one format from one seed."""

    def __init__(self, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> None:
        self.dtype, self.source = dtype, torch.Generator().manual_seed(seed)
        # what a norm's forward keeps for its backward: the host's kernels in the format, others in 32 bits
        self.statistics = dtype if device.partition(":")[0] in ("cpu", "ridge") else torch.float32

    def normal(self, *shape: int, size: float = 1.0, at: float = 0.0) -> Tensor:
        """Gaussian, in the format."""
        return (torch.randn(shape, generator=self.source) * size + at).to(self.dtype)

    def places(self, *shape: int, below: int) -> Tensor:
        """Indices, many of them twice."""
        return torch.randint(0, below, shape, generator=self.source)

    def strided_matrix(self, rows: int, columns: int) -> Tensor:
        """A transposed view that begins inside its memory."""
        return self.normal(columns + 3, rows + 5)[2 : 2 + columns, 4 : 4 + rows].mT

    def vary_layout(self, x: Tensor) -> Tensor:
        """The same numbers in memory with gaps, beginning inside it."""
        wide = torch.zeros((*x.shape[:-1], x.shape[-1] + 3), dtype=x.dtype)
        wide[..., 2:-1] = x
        return wide[..., 2:-1]
