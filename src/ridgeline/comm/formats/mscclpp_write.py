"""Turn an algorithm into an MSCCL++ execution plan: puts into the other rank's memory, signals and waits.

Chunks do not meet on their ways, so each thread block has some of them and needs no other block: in a round it puts
what it sends and signals, then waits for what it gets. A sum arrives in scratch, each message in its own place, and is
added there. Before the first put all blocks of peers meet once. As many blocks as the plan's limits ask for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from ridgeline.comm.algorithm import REDUCE, Algorithm
from ridgeline.comm.formats.lower import (
    Message,
    empty_program,
    first_places,
    messages_of,
    own_copies,
    refuse_unwritable_algorithm,
)
from ridgeline.comm.formats.program import Place, Program
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem

MOST_OPS, MOST_CHANNELS, MOST_AT_ONCE = 64, 16, 8  # ops and channels of a block, channels of an op
MOST_BLOCKS = 64
LARGEST = 2**32 - 1  # bytes: offsets are 32 bits wide
Json = JsonObject


def mscclpp_text(algorithm: Algorithm) -> str:
    """The plan's text; `InputError` where no number of blocks keeps within the executor's limits."""
    refuse_unwritable_algorithm(algorithm, "mscclpp")
    most_blocks = min(algorithm.contract.chunks, MOST_BLOCKS)
    blocks = 1
    while over := _too_many(algorithm, blocks):
        if blocks >= most_blocks:
            raise _over_limits(over)
        blocks = min(2 * blocks, most_blocks)
    while True:
        plan = _Plan(algorithm, blocks)
        over = plan.over_limits()
        if not over:
            return json.dumps(plan.sheet(), indent=1) + "\n"
        if blocks >= most_blocks:
            raise _over_limits(over)
        blocks = min(2 * blocks, most_blocks)


def _over_limits(over: str) -> InputError:
    expected_text, todo = "a plan within the executor's limits", "take fewer ranks, or another --algorithm"
    return InputError(Problem(path="--to mscclpp", given=over, expected=expected_text, todo=todo))


def _too_many(algorithm: Algorithm, blocks: int) -> str:
    """What is too much for the executor: at least a put a chunk sent, two ops a sum, and two a round and side."""
    steps, n = algorithm.steps, algorithm.ranks
    block = steps.chunk.astype(np.int64) % blocks
    sender, taker = steps.source * blocks + block, steps.target * blocks + block
    ops = np.bincount(sender, minlength=n * blocks)
    ops += 2 * np.bincount(taker[steps.op == REDUCE], minlength=n * blocks)
    for side in (sender, taker):
        ops += 2 * np.bincount(
            np.unique(steps.round * np.int64(n * blocks) + side) % (n * blocks), minlength=n * blocks
        )
    if ops.max() > MOST_OPS:
        rank, block_number = divmod(int(ops.argmax()), blocks)
        return f"at least {ops.max()} ops in block {block_number} of rank {rank}, of at most {MOST_OPS}"
    ends = np.concatenate([steps.source * np.int64(n) + steps.target, steps.target * np.int64(n) + steps.source])
    pairs = np.unique(ends * blocks + np.tile(block, 2))
    peers = np.bincount(pairs // (n * blocks) * blocks + pairs % blocks, minlength=n * blocks)
    if peers.max() > MOST_CHANNELS:
        return f"{peers.max()} peers of rank {int(peers.argmax()) // blocks}, of at most {MOST_CHANNELS}"
    return ""


class _Plan:
    """The ops of all blocks of all ranks."""

    def __init__(self, algorithm: Algorithm, blocks: int) -> None:
        self.algorithm, self.blocks = algorithm, blocks
        self.program: Program = empty_program(algorithm, "mscclpp")
        self.places = first_places(self.program)
        n = self.program.ranks
        self.ops: list[list[list[Json]]] = [[[] for _ in range(blocks)] for _ in range(n)]
        self.peers: list[list[list[int]]] = [[[] for _ in range(blocks)] for _ in range(n)]
        self.remote: list[dict[tuple[int, str], int]] = [{} for _ in range(n)]
        self.refs: list[list[dict[int, int]]] = [[{} for _ in range(blocks)] for _ in range(n)]
        self._build()

    def _build(self) -> None:
        messages = messages_of(self.algorithm, self.places, merge=False)
        by_block: dict[int, list[Message]] = defaultdict(list)
        for message in messages:
            by_block[message.chunk % self.blocks].append(message)
        for block, block_messages in by_block.items():
            self._meet(block, block_messages)
            rounds: dict[int, list[Message]] = defaultdict(list)
            for message in block_messages:
                rounds[message.round].append(message)
            for number in sorted(rounds):
                self._round(block, rounds[number])
        for copy in own_copies(self.program, self.places):
            (place,), (target,) = copy.reads, copy.writes
            ops = self.ops[place[0]][self.program.input_chunk(place[0], place[2]) % self.blocks]
            ops.append({"name": "copy", "src_buff": [_local(place)], "dst_buff": [_local(target)]})

    def _meet(self, block: int, mine: Iterable[Message]) -> None:
        pairs = {(a, b) for message in mine for a, b in (message.connection[:2], message.connection[1::-1])}
        for rank, peer in sorted(pairs):
            self.peers[rank][block].append(peer)
        for rank in range(self.program.ranks):
            everyone = range(len(self.peers[rank][block]))
            for name in ("signal", "wait"):
                self._sync(rank, block, name, everyone)
            if everyone:
                self.ops[rank][block].append({"name": "nop"})

    def _sync(self, rank: int, block: int, name: str, channels: Iterable[int]) -> None:
        ids = sorted(channels)
        for start in range(0, len(ids), MOST_AT_ONCE):
            some = ids[start : start + MOST_AT_ONCE]
            self.ops[rank][block].append({"name": name, "channel_ids": some, "channel_type": "memory"})

    def _round(self, block: int, mine: list[Message]) -> None:
        sends: dict[int, list[int]] = defaultdict(list)
        takes: dict[int, list[int]] = defaultdict(list)
        sums: dict[int, list[Json]] = defaultdict(list)
        for message in mine:
            source, target, _ = message.connection
            there = message.target if message.base is None else self.places.new_scratch(target)
            self.ops[source][block].append(self._put(source, block, message, there))
            sends[source].append(self.peers[source][block].index(target))
            takes[target].append(self.peers[target][block].index(source))
            if message.base is not None:
                reads = [_local(message.base), _local(there)]
                add = {"name": "re", "src_buff": reads, "dst_buff": [_local(message.target)], "reduce_op": "sum"}
                sums[target] += [add, {"name": "nop"}]
        for rank, channels in sends.items():
            self.ops[rank][block].append({"name": "nop"})
            self._sync(rank, block, "signal", set(channels))
        for rank, channels in takes.items():
            self._sync(rank, block, "wait", set(channels))
            self.ops[rank][block].append({"name": "nop"})
            self.ops[rank][block] += sums[rank]

    def _put(self, rank: int, block: int, one: Message, there: Place) -> Json:
        peer = self.peers[rank][block].index(one.connection[1])
        buffers, refs = self.remote[rank], self.refs[rank][block]
        number = buffers.setdefault(there[:2], len(buffers))
        local = refs.setdefault(number, len(refs))
        return {
            "name": "put", "src_buff": [_local(one.source)],
            "dst_buff": [{"buffer_id": local, "index": there[2], "size": one.count}],
            "channel_ids": [peer], "channel_type": "memory", "round": one.round,
        }  # fmt: skip

    def over_limits(self) -> str:
        """What is too much for the executor; blank: nothing."""
        for rank, blocks in enumerate(self.ops):
            for block, ops in enumerate(blocks):
                if len(ops) > MOST_OPS:
                    return f"{len(ops)} ops in block {block} of rank {rank}, of at most {MOST_OPS}"
                if len(self.peers[rank][block]) > MOST_CHANNELS:
                    return f"{len(self.peers[rank][block])} peers of rank {rank}, of at most {MOST_CHANNELS}"
        return ""

    def sheet(self) -> Json:
        """The plan as JSON."""
        return {
            "name": self.program.name,
            "collective": self.program.collective,
            "protocol": "Simple",
            "inplace": False,
            "reuse_resources": False,
            "num_threads_per_block": 1024,
            "use_double_scratch_buffer": False,
            "buffer_alignment": 16,
            "min_message_size": 0,
            "max_message_size": LARGEST,
            "gpus": [self._gpu(rank) for rank in range(self.program.ranks)],
        }

    def _gpu(self, rank: int) -> Json:
        peer_ids: list[int] = []
        first: list[int] = []
        for peers in self.peers[rank]:
            first.append(len(peer_ids))
            peer_ids += peers
        return {
            "id": rank,
            "input_chunks": self.program.inputs,
            "output_chunks": self.program.outputs,
            "scratch_chunks": self.places.scratch.get(rank, 0),
            "threadblocks": [self._block(rank, block, first[block]) for block in range(self.blocks)],
            "channels": [{"channel_type": "memory", "connected_to": peer_ids}] if peer_ids else [],
            "remote_buffers": [
                {"rank": peer, "type": buffer, "access_channel_types": ["memory"]} for peer, buffer in self.remote[rank]
            ],
            "semaphores": [],
        }

    def _block(self, rank: int, block: int, first: int) -> Json:
        ids = [first + index for index in range(len(self.peers[rank][block]))]
        refs = list(self.refs[rank][block])
        return {
            "id": block,
            "ops": self.ops[rank][block],
            "channels": [{"channel_type": "memory", "channel_ids": ids}] if ids else [],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": refs}] if refs else [],
        }


def _local(place: Place) -> Json:
    return {"type": place[1], "index": place[2], "size": 1}
