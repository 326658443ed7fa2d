"""Turn a number of layers and of virtual stages into how many layers each stage holds."""

from __future__ import annotations


def balanced(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage when the embedding and the output count as one slot each, at opposite ends.

        slots = layers + 2;  no stage holds more than ceil(slots / stages)

    An even split is kept where it is as good. Stages that hold one slot less stand at the ends first, the output's end
    before the embedding's, because those two carry work of their own.

    >>> balanced(126, 16)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    >>> balanced(96, 8), balanced(61, 4), balanced(5, 1)
    ((12, 12, 12, 12, 12, 12, 12, 12), (15, 16, 16, 14), (5,))
    """
    slots = layers + 2
    most = -(-slots // stages)
    if layers % stages == 0 and (stages == 1 or layers // stages + 1 <= most):
        return (layers // stages,) * stages
    held = [most] * stages
    held[0] -= 1
    held[-1] -= 1
    ends = [stage // 2 if stage % 2 else stages - 1 - stage // 2 for stage in range(stages)]
    short = sum(held) - layers
    while short:
        for stage in ends:
            if short and held[stage] > 0:
                held[stage] -= 1
                short -= 1
    return tuple(held)
