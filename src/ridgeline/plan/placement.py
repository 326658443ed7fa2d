"""Turn a number of layers and of virtual stages into how many layers each stage holds."""

from __future__ import annotations


def balanced(layers: int, stages: int, ahead: int = 0) -> tuple[int, ...]:
    """Layers of each stage when the embedding and the output count as one slot each, at opposite ends.

        slots = layers + 2;  no stage holds more than ceil(slots / stages)

    An even split is kept where it is as good. Stages that hold one slot less stand at the ends first, the output's end
    before the embedding's, because those two carry work of their own.

    A model that predicts `ahead` further tokens has that many blocks and outputs more at its end, each a slot. Then the
    stages are filled from the front, as Megatron's layouts for such models do, and the last one holds what is left.

    >>> balanced(61, 16, ahead=1)
    (4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1)
    >>> balanced(126, 16)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    >>> balanced(96, 8), balanced(61, 4), balanced(5, 1)
    ((12, 12, 12, 12, 12, 12, 12, 12), (15, 16, 16, 14), (5,))
    """
    if ahead and stages > 1:
        return _filled(layers, stages, -(-(layers + 1 + 2 * ahead) // stages))
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


def _filled(layers: int, stages: int, most: int) -> tuple[int, ...]:
    """Stages filled with `most` layers from the front."""
    held: list[int] = []
    for _ in range(stages):
        held.append(min(most, layers - sum(held)))
    return tuple(held)
