"""Pipeline schedules as data: a name and a size become a table of actions that can be checked, timed and executed.

The modules:

    registry      name, stages, microbatches, chunks -> ScheduleTable, or the reason why not
    table         the table and its parts             notation      rows written as phases
    one_f_one_b, zero_bubble, dualpipe_v              the rows of each schedule
    flow          what an action needs and makes      in_flight     activations held
    timing        start and end of every step         transport     sends and receives between steps
    laws          what a table must obey
"""

from ridgeline.plan.schedules.flow import Message, RankedAction, Tensor, Token, dependencies, messages
from ridgeline.plan.schedules.in_flight import peak_in_flight
from ridgeline.plan.schedules.laws import violations
from ridgeline.plan.schedules.registry import SCHEDULES, ScheduleKind, build, requirement, virtual_stages_by_rank
from ridgeline.plan.schedules.table import Action, Overlap, Phase, Row, ScheduleTable, Step, actions_of, flatten
from ridgeline.plan.schedules.timing import Costs, Run, run_in_order
from ridgeline.plan.schedules.transport import Boundary, Operation, Side, Transport, blocked_ranks, boundaries

__all__ = [
    "SCHEDULES",
    "Action",
    "Boundary",
    "Costs",
    "Message",
    "Operation",
    "Overlap",
    "Phase",
    "RankedAction",
    "Row",
    "Run",
    "ScheduleKind",
    "ScheduleTable",
    "Side",
    "Step",
    "Tensor",
    "Token",
    "Transport",
    "actions_of",
    "blocked_ranks",
    "boundaries",
    "build",
    "dependencies",
    "flatten",
    "messages",
    "peak_in_flight",
    "requirement",
    "run_in_order",
    "violations",
    "virtual_stages_by_rank",
]
