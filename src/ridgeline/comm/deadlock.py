"""Turn steps into the waits between them, and find ranks that wait for each other for ever.

A connection (source, target, channel) holds `slots` chunks: a send blocks while it is full, a receive until its chunk
is there. How a rank works through its steps decides whether that can end in a cycle of waits:

    apart    one worker sends and one receives on each channel, both in the order of the steps (isend and irecv, or a
             threadblock each). A wait is then always for an earlier step, or for the send of the same one: a send
             waits for the step whose slot it takes, a receive for its send, both for what came before. No cycle with
             one slot or more, whatever the steps are.
    serial   one worker does both: in a round it sends all, then receives (a threadblock that has both peers). With more
             chunks on a connection in a round than slots, ranks can all be stuck in their sends.
"""

from __future__ import annotations

import numpy as np

from ridgeline.comm.algorithm import Steps
from ridgeline.core.arrays import Index
from ridgeline.core.errors import Problem


def deadlocks(steps: Steps, slots: int) -> list[Problem]:
    """The first cycle of waits of serial workers, or nothing.

    With no more than `slots` chunks per connection in a round, waits go from later rounds to earlier ones, and from
    receives to sends of one round: they have no cycle. Otherwise the graph of waits is searched for one.
    """
    if not len(steps):
        return []
    connection = _connection(steps)
    most = _most_in_a_round(steps, connection)
    if most <= slots:
        return []
    return _cycle(steps, connection, slots)


def _connection(steps: Steps) -> Index:
    ends = int(max(steps.source.max(), steps.target.max())) + 1
    wide = steps.source.astype(np.int64) * ends + steps.target
    return wide * (int(steps.channel.max()) + 1) + steps.channel


def _most_in_a_round(steps: Steps, connection: Index) -> int:
    """The most chunks that one connection carries in one round."""
    span = int(connection.max()) + 1
    key = steps.round.astype(np.int64) * span + connection
    key.sort()
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    return int(np.diff(np.append(starts, len(key))).max())


def _cycle(steps: Steps, connection: Index, slots: int) -> list[Problem]:
    """Search the waits: node 2 i is the send of step i, node 2 i + 1 its receive."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = len(steps)
    rows = np.arange(size, dtype=np.int64)
    waits = [(2 * rows + 1, 2 * rows)]  # a receive waits for its send
    order = np.argsort(connection, kind="stable")
    same = connection[order[slots:]] == connection[order[:-slots]] if slots < size else np.zeros(0, np.bool_)
    waits.append((2 * order[slots:][same], 2 * order[:-slots][same] + 1))  # a slot is free when its chunk was taken
    worker = np.concatenate([steps.source, steps.target]).astype(np.int64) * 128 + np.tile(steps.channel, 2)
    phase = np.concatenate([2 * steps.round, 2 * steps.round + 1]).astype(np.int64)
    nodes = np.concatenate([2 * rows, 2 * rows + 1])
    line = np.lexsort((np.tile(rows, 2), phase, worker))
    follows = worker[line[1:]] == worker[line[:-1]]
    waits.append((nodes[line[1:]][follows], nodes[line[:-1]][follows]))  # a channel works in order
    late = np.concatenate([one for one, _ in waits])
    early = np.concatenate([one for _, one in waits])
    graph = coo_array((np.ones(len(late), np.int8), (late, early)), shape=(2 * size, 2 * size)).tocsr()
    _, label = connected_components(graph, directed=True, connection="strong")
    sizes = np.bincount(label)
    caught = np.flatnonzero(sizes[label] > 1)
    if not len(caught):
        return []
    row = int(caught[0]) // 2
    path = f"step {row} (round {steps.round[row]}, rank {steps.source[row]} to {steps.target[row]})"
    given = f"{len(caught)} sends and receives that wait for each other with {slots} slots a connection"
    return [Problem(path=path, given=given, expected="an order without deadlock", todo="send fewer chunks in a round")]
