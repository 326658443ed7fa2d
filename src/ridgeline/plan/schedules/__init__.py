"""Pipeline schedules as data: a name and a size become a table of actions that can be checked, timed and executed.

The modules:

    registry   name, stages, microbatches, chunks -> ScheduleTable, or the reason why not
    table      the table and its parts, and what an action needs and makes
    rows       the rows of each schedule
    timing     start and end of every step, activations held, sends and receives between steps
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
