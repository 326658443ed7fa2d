"""Turn an MSCCL++ execution plan (JSON) into a Program, or say which op of which block breaks the executor's rules.

Channel, buffer and switch numbers of an op are those of its block; the k-th channel to a rank meets that rank's k-th
channel back. Ops of a group of blocks do a share of each chunk, so chunks are cut finer by the sizes of all groups. A
pipeline is its ops, once. `reduce_op` is never read by the executor: sums.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import lcm
from pathlib import Path
from typing import TypeVar

import numpy as np

from ridgeline.comm.algorithm import REDUCE, Algorithm
from ridgeline.comm.contract import Collective
from ridgeline.comm.formats.lower import (
    LoweredMessage,
    empty_program,
    first_places,
    messages_of,
    own_copies,
    refuse_unwritable_algorithm,
)
from ridgeline.comm.formats.program import (
    MOST_CHUNKS,
    MOST_INSTRUCTIONS,
    MOST_MOVES,
    MOST_RANKS,
    Instruction,
    Place,
    RankProgram,
    Wrong,
    refuse_too_large,
    whole_number,
)
from ridgeline.comm.graph import refusal
from ridgeline.core.documents import JsonObject, JsonValue

COLLECTIVES: tuple[Collective, ...] = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
TYPES = ("memory", "port", "switch")
PAIRED = ("put", "pws", "pwsf", "get", "copy", "ppkt", "rppkt", "cpkt", "upkt", "gstore", "gstorepkt")
SUMS = ("re", "res", "rre", "rres", "respkt", "repkt", "recpkt", "recspkt", "glres")
PACKETS_IN = ("rppkt", "respkt", "repkt", "recpkt", "recspkt", "upkt")
PACKETS_OUT = ("ppkt", "rppkt", "cpkt", "respkt", "recpkt", "recspkt", "gstorepkt")
SIGNALS = ("signal", "rlxsignal", "pws", "pwsf")
WAITS = ("wait", "rlxwait")
STILL = ("nop", "flush", "barrier", "sem_acquire", "sem_release", *WAITS, "signal", "rlxsignal")
NAMES = (*STILL, *PAIRED, *SUMS, "pipeline")
MOST_OPS, MOST_CHANNELS, MOST_AT_ONCE = 64, 16, 8  # ops and channels of a block, channels of an op
MOST_SEMAPHORES, MOST_BARRIERS = 16, 16
MOST_FINER = 64
Keys = tuple[tuple[int, ...], ...]  # of semaphores
Entry = TypeVar("Entry")
ChannelEnd = tuple[JsonValue, JsonValue]  # a peer and which of its channels; of a switch its buffer and ranks


def read_mscclpp(path: Path, plan: JsonObject) -> RankProgram:
    """The program of a plan."""
    return _PlanReader(Wrong(str(path)), plan).program()


class _PlanReader:
    """One plan being read."""

    def __init__(self, wrong: Wrong, plan: JsonObject) -> None:
        self.wrong, self.plan = wrong, plan
        self.moves = self.count = 0
        self.initial: list[tuple[tuple[int, ...], int]] = []

    def program(self) -> RankProgram:
        plan = self.plan
        name = str(plan.get("collective", "")).replace("_", "").lower()
        collective = next((known for known in COLLECTIVES if known == name), None)
        if collective is None:
            raise self.wrong("collective", repr(plan.get("collective"))[:60], f"one of {', '.join(COLLECTIVES)}")
        gpus = self._list(plan, "gpus", "plan")
        self.ranks = len(gpus)
        if not 2 <= self.ranks <= MOST_RANKS:
            raise self.wrong("gpus", f"{self.ranks} of them", f"2 to {MOST_RANKS}")
        self.gpus: list[JsonObject] = [self._dict(gpu, f"gpu {index}") for index, gpu in enumerate(gpus)]
        for index, gpu in enumerate(self.gpus):
            self._int(gpu, "id", f"gpu {index}", index, index)
        self.finer = self._finer()
        self.collective = collective
        inputs, outputs = self._sizes()
        refuse_too_large(self.wrong, self.ranks, inputs, outputs)
        self.connected = [self._channels(rank) for rank in range(self.ranks)]
        blocks = tuple(self._gpu(rank) for rank in range(self.ranks))
        return RankProgram(
            name=str(plan.get("name", ""))[:80], target="mscclpp", collective=self.collective, ranks=self.ranks,
            inputs=inputs, outputs=outputs, root=0, in_place=(plan.get("inplace") is True,), slots=1, blocks=blocks,
            initial=tuple(self.initial),
        )  # fmt: skip

    def _dict(self, value: object, at: str) -> JsonObject:
        if not isinstance(value, dict):
            raise self.wrong(at, f"{value!r:.40}", "an object")
        return value

    def _list(self, owner: JsonObject, key: str, at: str, default: bool = False) -> list[object]:
        value = owner.get(key, [] if default else None)
        if not isinstance(value, list) or len(value) > MOST_INSTRUCTIONS:
            raise self.wrong(f"{at}: {key}", f"{value!r:.40}", "a list")
        return value

    def _int(self, owner: JsonObject, key: str, at: str, least: int, most: int, default: int | None = None) -> int:
        if key not in owner and default is not None:
            return default
        return whole_number(self.wrong, f"{at}: {key}", owner.get(key), least, most)

    def _entry(self, entries: Sequence[Entry], path: str, number: object) -> Entry:
        """The entry of a number that a plan gives."""
        return entries[whole_number(self.wrong, path, number, 0, len(entries) - 1)]

    def _word(self, owner: JsonObject, key: str, at: str, known: tuple[str, ...]) -> str:
        value = owner.get(key)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(f"{at}: {key}", f"{value!r:.40}", f"one of {', '.join(known)}")
        return value

    def _finer(self) -> int:
        """How many parts the blocks of groups cut a chunk into."""
        factor = 1
        for rank, gpu in enumerate(self.gpus):
            for block in self._list(gpu, "threadblocks", f"gpu {rank}"):
                for op in self._flat(self._dict(block, f"gpu {rank}"), f"gpu {rank}"):
                    if "tbg_info" in op:
                        info = self._dict(op["tbg_info"], f"gpu {rank}: tbg_info")
                        factor = lcm(factor, self._int(info, "tbg_size", f"gpu {rank}: tbg_info", 1, MOST_FINER))
                        if factor > MOST_FINER:
                            raise self.wrong(f"gpu {rank}: tbg_size", str(factor), f"parts up to {MOST_FINER}")
        return factor

    def _flat(self, block: JsonObject, at: str) -> Iterator[JsonObject]:
        """The ops of a block, those of pipelines in their place."""
        for op in self._list(block, "ops", at):
            operation = self._dict(op, at)
            self.count += 1
            if self.count > MOST_INSTRUCTIONS:
                raise self.wrong(at, "more ops", f"at most {MOST_INSTRUCTIONS}")
            if operation.get("name") == "pipeline":
                for inner in self._list(operation, "ops", at):
                    yield self._dict(inner, at)
            else:
                yield operation

    def _sizes(self) -> tuple[int, int]:
        chunk_counts = {
            self._int(gpu, "input_chunks", f"gpu {rank}", 1, MOST_CHUNKS) for rank, gpu in enumerate(self.gpus)
        }
        if len(chunk_counts) > 1:
            raise self.wrong("input_chunks", str(sorted(chunk_counts))[:60], "the same on all ranks")
        inputs = chunk_counts.pop()
        n = self.ranks
        if self.collective in ("reducescatter", "alltoall") and inputs % n:
            raise self.wrong("input_chunks", str(inputs), f"a multiple of {n} ranks")
        outputs = {"allgather": inputs * n, "reducescatter": inputs // n}.get(self.collective, inputs)
        for rank, gpu in enumerate(self.gpus):
            output_chunks = self._int(gpu, "output_chunks", f"gpu {rank}", 0, MOST_CHUNKS)
            if output_chunks not in (0, outputs):
                raise self.wrong(f"gpu {rank}: output_chunks", str(output_chunks), f"{outputs}, or 0")
        return inputs * self.finer, outputs * self.finer

    def _channels(self, rank: int) -> dict[str, list[ChannelEnd]]:
        """By type the ends of each channel: (peer, which of its channels), or a switch's buffer and ranks."""
        channels: dict[str, list[ChannelEnd]] = {kind: [] for kind in TYPES}
        at = f"gpu {rank}: channels"
        for channel in self._list(self.gpus[rank], "channels", f"gpu {rank}", default=True):
            entry = self._dict(channel, at)
            kind = self._word(entry, "channel_type", at, TYPES)
            if kind == "switch":
                buffer = self._word(
                    {"buffer_type": entry.get("buffer_type", entry.get("buff"))}, "buffer_type", at, ("i", "o", "s")
                )
                for group in self._list(entry, "rank_groups", at):
                    ranks = [
                        whole_number(self.wrong, at, peer, 0, self.ranks - 1)
                        for peer in self._list(self._dict(group, at), "ranks", at)
                    ]
                    channels[kind].append((buffer, tuple(ranks)))
                continue
            peers_seen = [peer for peer, _ in channels[kind]]
            for peer in self._list(entry, "connected_to", at):
                number = whole_number(self.wrong, at, peer, 0, self.ranks - 1)
                if number == rank:
                    raise self.wrong(at, f"rank {rank} itself", "another rank")
                channels[kind].append((number, peers_seen.count(number)))
                peers_seen.append(number)
        return channels

    def _gpu(self, rank: int) -> tuple[tuple[Instruction, ...], ...]:
        gpu, at = self.gpus[rank], f"gpu {rank}"
        self.scratch = self._int(gpu, "scratch_chunks", at, 0, MOST_CHUNKS, default=0)
        semaphores = self._list(gpu, "semaphores", at, default=True)
        if len(semaphores) > MOST_SEMAPHORES:
            raise self.wrong(f"{at}: semaphores", str(len(semaphores)), f"at most {MOST_SEMAPHORES}")
        for index, semaphore in enumerate(semaphores):
            value = self._int(self._dict(semaphore, at), "init_value", f"{at}: semaphore {index}", 0, 2**31)
            self.initial.append(((rank, rank, -1, index), value))
        self.semaphores = len(semaphores)
        self.remote = []
        for semaphore in self._list(gpu, "remote_buffers", at, default=True):
            buffer = self._dict(semaphore, f"{at}: remote_buffers")
            peer = self._int(buffer, "rank", f"{at}: remote_buffers", 0, self.ranks - 1)
            self.remote.append((peer, self._word(buffer, "type", f"{at}: remote_buffers", ("i", "o", "s"))))
        blocks = []
        for index, block in enumerate(self._list(gpu, "threadblocks", at)):
            semaphore = self._dict(block, f"{at}, block {index}")
            self._int(semaphore, "id", f"{at}, block {index}", index, index)
            blocks.append(tuple(self._block(rank, index, semaphore)))
        return tuple(blocks)

    def _block(self, rank: int, index: int, block: JsonObject) -> Iterator[Instruction]:
        at = f"rank {rank}, block {index}"
        ops = list(self._flat(block, at))
        if len(ops) > MOST_OPS:
            raise self.wrong(at, f"{len(ops)} ops", f"at most {MOST_OPS}")
        self.mine: dict[str, list[ChannelEnd]] = {kind: [] for kind in TYPES}
        for channel_entry in self._list(block, "channels", at, default=True):
            channel = self._dict(channel_entry, at)
            kind = self._word(channel, "channel_type", at, TYPES)
            known_channels = self.connected[rank][kind]
            ids = self._list(channel, "channel_ids", at)
            self.mine[kind] += [self._entry(known_channels, f"{at}: channel_ids", id) for id in ids]
            if len(self.mine[kind]) > MOST_CHANNELS:
                raise self.wrong(at, f"{len(self.mine[kind])} channels", f"at most {MOST_CHANNELS} of a type")
        self.refs: list[tuple[int, str]] = []
        for channel_entry in self._list(block, "remote_buffer_refs", at, default=True):
            ids = self._list(self._dict(channel_entry, at), "remote_buffer_ids", at)
            self.refs += [self._entry(self.remote, f"{at}: remote_buffer_ids", id) for id in ids]
        for number, op in enumerate(ops):
            yield from self._op(rank, f"{at}, step {number}", op)

    def _op(self, rank: int, at: str, op: JsonObject) -> Iterator[Instruction]:
        name = self._word(op, "name", at, NAMES)
        share = self._share(op, at)
        signals = self._keys(rank, op, at, outward=True) if name in SIGNALS else ()
        if name in STILL:
            yield self._still(rank, at, op, name, signals)
            return
        sources = [self._places(rank, at, buffer, share) for buffer in self._list(op, "src_buff", at)]
        targets = [self._places(rank, at, buffer, share) for buffer in self._list(op, "dst_buff", at)]
        if not sources or not targets:
            raise self.wrong(at, f"{name} without src_buff or dst_buff", "both")
        round_ = self._int(op, "round", at, 0, MOST_INSTRUCTIONS, default=-1)
        pairs = [(sources, targets)] if name in SUMS else [
            ([sources[min(index, len(sources) - 1)]], [target]) for index, target in enumerate(targets)
        ]  # fmt: skip
        for number, (reads, writes) in enumerate(pairs):
            count = reads[0][1]
            if any(size != count for _, size in (*reads, *writes)):
                raise self.wrong(at, f"{name} of different sizes", "one size")
            self.moves += count * (len(reads) + len(writes))
            if self.moves > MOST_MOVES:
                raise self.wrong(at, "more chunks moved", f"at most {MOST_MOVES}")
            yield Instruction(
                name=name, count=count, round=round_,
                reads=tuple(place for places, _ in reads for place in places),
                writes=tuple(place for places, _ in writes for place in places),
                signals=signals if number == len(pairs) - 1 else (),
                flags=name in PACKETS_OUT, awaits_flags=name in PACKETS_IN,
            )  # fmt: skip

    def _still(
        self, rank: int, at: str, op: JsonObject, name: str, signals: tuple[tuple[int, ...], ...]
    ) -> Instruction:
        """An op that moves nothing: signals, waits, barriers, semaphores."""
        if name == "barrier":
            number = self._int(op, "barrier_id", at, 0, MOST_BARRIERS - 1)
            return Instruction(name=name, barrier=(number, self._int(op, "num_threadblocks", at, 1, 2**16)))
        if name in ("sem_acquire", "sem_release"):
            ids = self._list(op, "semaphore_ids", at)
            keys = tuple(
                (rank, rank, -1, whole_number(self.wrong, f"{at}: semaphore_ids", id, 0, self.semaphores - 1))
                for id in ids
            )
            return Instruction(name=name, waits=keys) if name == "sem_acquire" else Instruction(name=name, signals=keys)
        if name in WAITS:
            return Instruction(name=name, waits=self._keys(rank, op, at, outward=False))
        return Instruction(name=name, signals=signals)

    def _keys(self, rank: int, op: JsonObject, at: str, *, outward: bool) -> Keys:
        """The semaphores that a signal raises or a wait takes from: from, to, type, which of the channels."""
        kind = self._word(op, "channel_type", at, ("memory", "port"))
        ids = self._list(op, "channel_ids", at)
        if not 1 <= len(ids) <= MOST_AT_ONCE:
            raise self.wrong(f"{at}: channel_ids", f"{len(ids)} of them", f"1 to {MOST_AT_ONCE}")
        keys = []
        for id in ids:
            peer, which = self._entry(self.mine[kind], f"{at}: channel_ids", id)
            ends = (rank, peer) if outward else (peer, rank)
            keys.append((*ends, TYPES.index(kind), which))
        return tuple(keys)

    def _share(self, op: JsonObject, at: str) -> tuple[int, int]:
        """Which part of each chunk a block of a group does: (number, of how many)."""
        if "tbg_info" not in op:
            return 0, 1
        info = self._dict(op["tbg_info"], at)
        size = self._int(info, "tbg_size", at, 1, MOST_FINER)
        return self._int(info, "tb_id", at, 0, size - 1), size

    def _places(self, rank: int, at: str, buffer: object, share: tuple[int, int]) -> tuple[list[Place], int]:
        """The places that a buffer of an op means, on every rank of a switch, and how many chunks it is."""
        entry = self._dict(buffer, at)
        index = self._int(entry, "index", at, 0, MOST_CHUNKS)
        size = self._int(entry, "size", at, 1, MOST_CHUNKS)
        if "switch_channel_id" in entry:
            kind, ranks = self._entry(self.mine["switch"], f"{at}: switch_channel_id", entry["switch_channel_id"])
            ends = [(peer, kind) for peer in ranks]
        elif "buffer_id" in entry:
            ends = [self._entry(self.refs, f"{at}: buffer_id", entry["buffer_id"])]
        else:
            ends = [(rank, self._word(entry, "type", at, ("i", "o", "s")))]
        number, parts = share
        count = size * self.finer // parts
        first = index * self.finer + number * count
        for peer, kind in ends:
            room = self._room(peer, kind)
            if first + count > room * self.finer:
                raise self.wrong(at, f"{kind}[{index}:{index + size}] of rank {peer}", f"at most {room} chunks")
        return [(peer, kind, first) for peer, kind in ends], count

    def _room(self, rank: int, kind: str) -> int:
        gpu, at = self.gpus[rank], f"gpu {rank}"
        if kind == "s":
            return self._int(gpu, "scratch_chunks", at, 0, MOST_CHUNKS, default=0)
        room = self._int(gpu, "input_chunks" if kind == "i" else "output_chunks", at, 0, MOST_CHUNKS)
        return room or self._int(gpu, "input_chunks", at, 0, MOST_CHUNKS)


MOST_BLOCKS = 64
LARGEST = 2**32 - 1  # bytes: offsets are 32 bits wide


def mscclpp_text(algorithm: Algorithm) -> str:
    """The plan's text; `InputError` where no number of blocks keeps within the executor's limits."""
    refuse_unwritable_algorithm(algorithm, "mscclpp")
    most_blocks = min(algorithm.contract.chunks, MOST_BLOCKS)
    blocks = 1
    while True:
        over = _too_many(algorithm, blocks)
        if not over:
            plan = _Plan(algorithm, blocks)
            over = plan.over_limits()
            if not over:
                return json.dumps(plan.sheet(), indent=1) + "\n"
        if blocks >= most_blocks:
            expected_text, todo = "a plan within the executor's limits", "take fewer ranks, or another --algorithm"
            raise refusal("--to mscclpp", over, expected_text, todo=todo)
        blocks = min(2 * blocks, most_blocks)


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
        self.program: RankProgram = empty_program(algorithm, "mscclpp")
        self.places = first_places(self.program)
        n = self.program.ranks
        self.ops: list[list[list[JsonObject]]] = [[[] for _ in range(blocks)] for _ in range(n)]
        self.peers: list[list[list[int]]] = [[[] for _ in range(blocks)] for _ in range(n)]
        self.remote: list[dict[tuple[int, str], int]] = [{} for _ in range(n)]
        self.refs: list[list[dict[int, int]]] = [[{} for _ in range(blocks)] for _ in range(n)]
        self._build()

    def _build(self) -> None:
        messages = messages_of(self.algorithm, self.places, merge=False)
        by_block: dict[int, list[LoweredMessage]] = defaultdict(list)
        for message in messages:
            by_block[message.chunk % self.blocks].append(message)
        for block, block_messages in by_block.items():
            self._meet(block, block_messages)
            rounds: dict[int, list[LoweredMessage]] = defaultdict(list)
            for message in block_messages:
                rounds[message.round].append(message)
            for number in sorted(rounds):
                self._round(block, rounds[number])
        for copy in own_copies(self.places):
            (place,), (target,) = copy.reads, copy.writes
            ops = self.ops[place[0]][self.program.input_chunks(place[0])[place[2]] % self.blocks]
            ops.append({"name": "copy", "src_buff": [_local(place)], "dst_buff": [_local(target)]})

    def _meet(self, block: int, mine: Iterable[LoweredMessage]) -> None:
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

    def _round(self, block: int, mine: list[LoweredMessage]) -> None:
        sends: dict[int, list[int]] = defaultdict(list)
        takes: dict[int, list[int]] = defaultdict(list)
        sums: dict[int, list[JsonObject]] = defaultdict(list)
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

    def _put(self, rank: int, block: int, one: LoweredMessage, there: Place) -> JsonObject:
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

    def sheet(self) -> JsonObject:
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

    def _gpu(self, rank: int) -> JsonObject:
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

    def _block(self, rank: int, block: int, first: int) -> JsonObject:
        ids = [first + index for index in range(len(self.peers[rank][block]))]
        refs = list(self.refs[rank][block])
        return {
            "id": block,
            "ops": self.ops[rank][block],
            "channels": [{"channel_type": "memory", "channel_ids": ids}] if ids else [],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": refs}] if refs else [],
        }


def _local(place: Place) -> JsonObject:
    return {"type": place[1], "index": place[2], "size": 1}
