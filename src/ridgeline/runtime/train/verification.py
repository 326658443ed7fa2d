"""What comparing a plan with one process found, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One parameter's gradient against the reference's; both relative to its norm."""

    name: str
    difference: float
    tolerance: float

    @property
    def equal(self) -> bool:
        """Within its tolerance; what is no number is not."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan against one process.

    parameters   in the order of the model
    """

    loss: float
    reference_loss: float
    tolerance: float
    parameters: tuple[Compared, ...]

    JSON = "kind='equivalence' equal loss reference_loss loss_difference parameters=compared diverged worst"

    @property
    def compared(self) -> int:
        """How many parameters were compared."""
        return len(self.parameters)

    @property
    def loss_difference(self) -> float:
        """Relative."""
        return abs(self.loss - self.reference_loss) / abs(self.reference_loss)

    @property
    def diverged(self) -> tuple[Compared, ...]:
        """Parameters beyond their tolerance, the one nearest the loss first."""
        return tuple(parameter for parameter in reversed(self.parameters) if not parameter.equal)

    @property
    def worst(self) -> Compared:
        """The largest difference, in tolerances."""
        return max(self.parameters, key=lambda one: one.difference / one.tolerance)

    @property
    def equal(self) -> bool:
        """Whether loss and every gradient are."""
        return not self.diverged and self.loss_difference <= self.tolerance
