"""Turn a table into the number of activations each rank holds at its worst moment.

One held activation is one (microbatch, chunk) whose forward ran and whose last reader has not. A chunk is 1/v of a
stage, so counts of tables with different v compare only after dividing by v. Bytes are not counted here.
"""

from ridgeline.plan.schedules.table import Phase, ScheduleTable, flatten


def peak_in_flight(table: ScheduleTable, *, released_by: Phase = Phase.BACKWARD_WEIGHT) -> tuple[int, ...]:
    """Most activations held at once, per rank.

    A full backward B always releases. Where the backward is split, ``released_by`` says which half does:

        W (default)   nothing is given back before the weight gradient is done: the safe count
        I             all is given back at the input gradient: what a schedule would hold if W needed no activation

    The truth of a split backward lies between, since W reads only the inputs of the matrix multiplications. The
    forward of an overlapped pair counts as held before its backward releases.

    >>> from ridgeline.plan.schedules import build
    >>> table = build("zero-bubble-h1", stages=4, microbatches=8)
    >>> peak_in_flight(table), peak_in_flight(table, released_by=Phase.BACKWARD_INPUT)
    ((4, 4, 4, 4), (4, 3, 2, 1))
    """
    releasing = (Phase.BACKWARD, released_by)
    peaks = []
    for row in table.rows:
        in_flight = peak = 0
        for action in flatten(row):
            if action.phase is Phase.FORWARD:
                in_flight += 1
                peak = max(peak, in_flight)
            elif action.phase in releasing:
                in_flight -= 1
        peaks.append(peak)
    return tuple(peaks)
