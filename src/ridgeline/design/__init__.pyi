"""Names that the room of designs offers."""

from ridgeline.design.architecture_answer import Architecture as Architecture
from ridgeline.design.architecture_answer import ArchitectureAnswer as ArchitectureAnswer
from ridgeline.design.architectures import search_architectures as search_architectures
from ridgeline.design.blocks import choose_stack as choose_stack
from ridgeline.design.design_answer import Contest as Contest
from ridgeline.design.design_answer import DesignAnswer as DesignAnswer
from ridgeline.design.design_answer import DesignPoint as DesignPoint
from ridgeline.design.design_answer import Requirement as Requirement
from ridgeline.design.frontier import workers
from ridgeline.design.machines import design_machines as design_machines
from ridgeline.design.report_answer import Ask as Ask
from ridgeline.design.report_answer import ReportFigure as ReportFigure
from ridgeline.design.report_answer import RequirementReport as RequirementReport
from ridgeline.design.report_answer import TeamReport as TeamReport
from ridgeline.design.requirements import requirement_report as requirement_report
from ridgeline.design.sense import sense
from ridgeline.design.sensitivity import Elasticity as Elasticity
from ridgeline.design.sensitivity import RegimeChange as RegimeChange
from ridgeline.design.sensitivity import SaturationCurve as SaturationCurve
from ridgeline.design.sensitivity import SensitivityAnswer as SensitivityAnswer
from ridgeline.design.study import DesignStudy as DesignStudy
from ridgeline.design.study import read_study as read_study

design_workers = workers
scenario_sensitivity = sense
