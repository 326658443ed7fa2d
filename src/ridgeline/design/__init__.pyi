"""Names that the room of designs offers."""

from ridgeline.design.architecture_answer import ArchitectureAnswer as ArchitectureAnswer
from ridgeline.design.design_answer import DesignAnswer as DesignAnswer
from ridgeline.design.report_answer import RequirementReport as RequirementReport
from ridgeline.design.sensitivity import Elasticity as Elasticity
from ridgeline.design.sensitivity import SensitivityAnswer as SensitivityAnswer
