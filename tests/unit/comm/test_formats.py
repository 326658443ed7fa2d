"""Files of libraries: written, read back as the same algorithm, verified by execution; hostile ones refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ridgeline.cli.main import command_line
from ridgeline.comm.algorithm import Algorithm, reduce_then_gather
from ridgeline.comm.answer import collective as answered
from ridgeline.comm.formats.files import read_collective, target_text, write_collective
from ridgeline.comm.formats.lower import _messages, lower_algorithm
from ridgeline.comm.formats.settings_files import choice_text, read_hccl, read_tuner, tuner_text
from ridgeline.comm.graph import without
from ridgeline.comm.libraries.choice import library_choice
from ridgeline.comm.library.algorithms import allgather_over, ring_allgather
from ridgeline.comm.select import candidates
from ridgeline.comm.synthesis.matching import symmetric_allgather
from ridgeline.comm.synthesis.synthesize import synthesize
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.topologies import topology
from ridgeline.comm.verify import AlgorithmVerification, verify_algorithm
from ridgeline.core.errors import InputError

ALGORITHM_TARGETS = ("msccl", "rccl", "mscclpp")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")


def verify_file(path: Path) -> tuple[Algorithm, AlgorithmVerification]:
    found = read_collective(path)
    assert found.algorithm is not None
    assert found.verification is not None
    return found.algorithm, found.verification


def rows(algorithm: Algorithm) -> list[tuple[int, ...]]:
    steps = algorithm.steps
    columns = (steps.round, steps.source, steps.target, steps.chunk, steps.op)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def named(collective: str, graph: str, name: str) -> Algorithm:
    made = candidates(collective, topology(graph, 50e9, 1e-6))  # type: ignore[arg-type]
    return next(one.make() for one in made if one.name == name)


@pytest.mark.parametrize("target", ALGORITHM_TARGETS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_file_is_read_back_as_the_same_algorithm_and_time(collective: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in ("ring:4", "mesh:3x2", "domains:2x2"):
        graph = topology(name, 50e9, 1e-6)
        for one in candidates(collective, graph):  # type: ignore[arg-type]
            made = one.make()
            if len(made.steps) > 80:
                continue
            write_collective(made, path, target)
            read, verified = verify_file(path)
            assert verified.ok, (name, one.name, verified.problems)
            assert rows(read) == rows(made), (name, one.name)
            assert verify_algorithm(read).ok
            times = [time_algorithm(each, graph, 1e8).seconds for each in (made, read)]
            assert times[0] == pytest.approx(times[1], rel=1e-12)


@pytest.mark.parametrize("target", ALGORITHM_TARGETS)
def test_synthesized_algorithms_are_written_too(target: str, tmp_path: Path) -> None:
    graph = without(topology("torus:3x3", 50e9, 1e-6), ["link:0-1"])
    path = tmp_path / "file"
    for collective in ("allgather", "allreduce"):
        made = synthesize(collective, graph, 1e6)  # type: ignore[arg-type]
        write_collective(made, path, target)
        read, verified = verify_file(path)
        assert verified.ok
        assert rows(read) == rows(made)


def xml(tmp_path: Path, change: Callable[[str], str] = lambda text: text, name: str = "ring") -> Path:
    path = tmp_path / "file.xml"
    path.write_text(change(target_text(named("allreduce", "switch:4", name), "msccl")))
    return path


class TestMutations:
    """A dropped, doubled or reordered step and a dropped wait are caught by execution."""

    def test_msccl(self, tmp_path: Path) -> None:
        text = target_text(named("allreduce", "switch:4", "ring"), "msccl")
        sends = re.finditer(
            r'type="s" [^/]*?(depid="\d+" deps="\d+")', text
        )  # overwriting waits for its own echo anyway
        waits = [found.start(1) for found in sends]
        caught = 0
        for start in waits:
            end = text.index("hasdep", start)
            path = xml(tmp_path, lambda whole, s=start, e=end: whole[:s] + 'depid="-1" deps="-1" ' + whole[e:])  # type: ignore[misc]
            caught += not verify_file(path)[1].ok
        assert caught == len(waits) > 10
        for old, new in (('type="rrc"', 'type="r"'), ('type="r" srcbuf="o"', 'type="rrc" srcbuf="o"')):
            assert old in text
            verified = verify_file(xml(tmp_path, lambda whole, a=old, b=new: whole.replace(a, b, 1)))[1]  # type: ignore[misc]
            assert not verified.ok
            assert "rank" in verified.problems[0].path

    def test_mscclpp(self, tmp_path: Path) -> None:
        whole = json.loads(target_text(named("allreduce", "switch:4", "ring"), "mscclpp"))
        path = tmp_path / "plan.json"
        ops = whole["gpus"][1]["threadblocks"][0]["ops"]
        moving = [index for index, op in enumerate(ops) if op["name"] in ("put", "signal", "re")]
        for index in moving:
            damaged = json.loads(json.dumps(whole))
            del damaged["gpus"][1]["threadblocks"][0]["ops"][index]
            path.write_text(json.dumps(damaged))
            verified = verify_file(path)[1]
            assert not verified.ok, ops[index]
        late = [index for index, op in enumerate(ops) if op["name"] == "wait"][1:]
        damaged = json.loads(json.dumps(whole))
        damaged["gpus"][1]["threadblocks"][0]["ops"][late[0]]["name"] = "nop"
        path.write_text(json.dumps(damaged))
        assert not verify_file(path)[1].ok

    def test_a_deadlock_names_rank_and_step(self, tmp_path: Path) -> None:
        """Two blocks that wait for each other's last step."""
        rest = 'srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"'
        sizes = 'i_chunks="1" o_chunks="1" s_chunks="0"'
        text = f"""<algo name="stuck" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="allreduce"
         inplace="1"><gpu id="0" {sizes}>
         <tb id="0" send="1" recv="-1" chan="0"><step s="0" type="s" {rest} depid="1" deps="0" hasdep="1"/></tb>
         <tb id="1" send="-1" recv="1" chan="0"><step s="0" type="rrc" {rest} depid="0" deps="0" hasdep="1"/></tb></gpu>
        <gpu id="1" {sizes}>
         <tb id="0" send="0" recv="0" chan="0"><step s="0" type="rrcs" {rest} depid="-1" deps="-1" hasdep="0"/></tb>
        </gpu></algo>"""
        path = tmp_path / "stuck.xml"
        path.write_text(text)
        problem = verify_file(path)[1].problems[0]
        assert problem.path == "rank 0, block 0, step 0 (s)"
        assert "step 0 of block 1" in problem.given
        done = CliRunner().invoke(command_line(), ["collective", "verify", str(path)])
        assert done.exit_code == 2
        assert "deadlock" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('ngpus="4"', 'ngpus="5"', "ngpus"),
        ('ngpus="4"', 'ngpus="99999999999999999999999"', "ngpus"),
        ('coll="allreduce"', 'coll="dance"', "coll"),
        ('coll="allreduce"', 'coll="custom"', "custom"),
        ('proto="Simple"', 'proto="Fast"', "proto"),
        ('nchunksperloop="4"', 'nchunksperloop="8"', "i_chunks"),
        ('send="1"', 'send="0"', "itself"),
        ('send="1"', 'send="9"', "send"),
        ('cnt="1"', 'cnt="72"', "cnt"),
        ('cnt="1"', 'cnt="x"', "cnt"),
        ('srcoff="0"', 'srcoff="4"', "srcoff"),
        ('hasdep="0"', 'hasdep="2"', "hasdep"),
        ('type="s"', 'type="ra"', "ra"),
        ('type="s"', 'type="r"', "recv peer"),
        ('<step s="1"', '<step s="7"', "line"),
        ("<algo", '<!DOCTYPE a [<!ENTITY b "c">]><algo', "document type"),
        ("<gpu", "<tb", "<gpu>"),
        ("</algo>", "", "line"),
    ],
)
def test_msccl_rules(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = xml(tmp_path, lambda text: text.replace(old, new, 1))
    with pytest.raises(InputError, match=told):
        read_collective(path)


class TestLimits:
    def test_rccl_is_narrower(self, tmp_path: Path) -> None:
        wide = named("alltoall", "switch:36", "all-pairs")
        target_text(wide, "msccl")
        with pytest.raises(InputError, match="at most 64"):
            target_text(wide, "rccl")
        path = xml(tmp_path, lambda text: re.sub(r' maxBytes="\d+"', "", text))
        assert read_collective(path).format == "msccl"
        with pytest.raises(InputError, match="maxBytes"):
            read_collective(path, "rccl")

    def test_peers_are_spread_over_channels(self) -> None:
        text = target_text(named("alltoall", "switch:36", "all-pairs"), "msccl")
        assert 'nchannels="2"' in text

    def test_nothing_is_written_where_a_target_has_no_words(self, tmp_path: Path) -> None:
        path = tmp_path / "none.xml"
        switched = named("allreduce", "switch:4", "ring")
        rooted = next(one.make() for one in candidates("broadcast", topology("ring:4", 1.0, 0.0), 2))
        with pytest.raises(InputError, match="root 2"):
            write_collective(rooted, path, "msccl")
        with pytest.raises(InputError, match="ridgeline"):
            write_collective(switched, path, "gloo")
        assert not path.exists()

    def test_too_many_peers_for_a_plan(self) -> None:
        """A chunk that goes to 17 ranks needs 17 channels of one block."""
        with pytest.raises(InputError, match="17 peers of rank 0, of at most 16"):
            target_text(named("allgather", "switch:18", "all-pairs"), "mscclpp")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"collective": "dance"}, "collective"),
        ({"gpus": []}, "gpus"),
        ({"gpus": [1, 2]}, "an object"),
        ({"gpus": [{"id": 1}, {"id": 0}]}, "id"),
        ({"gpus": "x"}, "gpus"),
    ],
)
def test_plans_that_are_no_plans(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(target_text(named("allgather", "ring:3", "ring"), "mscclpp")) | change))
    with pytest.raises(InputError, match=told):
        read_collective(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "jump"}, "step 0: name"),
        ({"channel_ids": [7]}, "channel_ids"),
        ({"channel_ids": list(range(9))}, "1 to 8"),
        ({"channel_type": "wire"}, "channel_type"),
        ({"name": "put", "src_buff": [{"type": "i", "index": 9, "size": 1}], "dst_buff": []}, "at most"),
        ({"name": "copy", "src_buff": [{"type": "z", "index": 0, "size": 1}], "dst_buff": []}, "type"),
        ({"name": "sem_acquire", "semaphore_ids": [0]}, "semaphore_ids"),
        ({"name": "barrier", "barrier_id": 99, "num_threadblocks": 1}, "barrier_id"),
        ({"tbg_info": {"tb_id": 0, "tbg_size": 999}}, "tbg_size"),
    ],
)
def test_ops_that_break_the_executors_rules(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    plan = json.loads(target_text(named("allgather", "ring:3", "ring"), "mscclpp"))
    plan["gpus"][0]["threadblocks"][0]["ops"][0] |= change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    with pytest.raises(InputError, match=told):
        read_collective(path)


WHOLE, LANDED = ({"type": kind, "index": 0, "size": 2} for kind in "is")


@pytest.mark.parametrize("target", ["msccl", "rccl", "mscclpp"])
def test_what_a_target_cannot_hold_is_refused_before_it_is_written(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits are held against what there is at least: no message is made for a file that cannot be."""
    monkeypatch.setattr("ridgeline.comm.formats.lower.messages_of", None)
    monkeypatch.setattr("ridgeline.comm.formats.mscclpp.messages_of", None)
    long_ring = reduce_then_gather(ring_allgather(400))
    with pytest.raises(InputError, match=r"at least|in one thread block"):
        target_text(long_ring, target)
    with pytest.raises(InputError, match=r"connections of rank|peers of rank|at least"):
        target_text(allgather_over(np.arange(200), "all-pairs"), target)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"])
def test_messages_are_counted_before_they_are_made(collective: str) -> None:
    graph = topology("torus:4x4", 50e9, 5e-7)
    for one in candidates(collective, graph):  # type: ignore[arg-type]
        made = one.make()
        written = lower_algorithm(made, "msccl")
        sends = sum(step.pushes is not None for rank in written.blocks for block in rank for step in block)
        assert int(_messages(made)[1].sum()) <= sends
        if collective == "allreduce" and one.name in ("ring", "bucket"):
            assert int(_messages(made)[1].sum()) == sends


def test_a_small_file_that_asks_for_much_memory(tmp_path: Path) -> None:
    plan = json.loads(target_text(named("allreduce", "ring:3", "ring"), "mscclpp"))
    for gpu in plan["gpus"]:
        gpu |= {"input_chunks": 2**20, "output_chunks": 2**20}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    with pytest.raises(InputError, match="at most 2097152 in all"):
        read_collective(path)


class TestPlanOps:
    """Packets, switches, groups of blocks, barriers and semaphores as executors run them."""

    @staticmethod
    def plan(blocks: Callable[[int], list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
        gpus = [
            {
                "id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 2,
                "semaphores": [{"init_value": 0}],
                "channels": [{"channel_type": "memory", "connected_to": [1 - rank]},
                             {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"ranks": [0, 1]}]}],
                "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
                "threadblocks": [
                    {"id": index, "ops": block["ops"], "channels": [{"channel_type": "memory", "channel_ids": [0]},
                     {"channel_type": "switch", "channel_ids": [0]}],
                     "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]}
                    for index, block in enumerate(blocks(rank))
                ],
            }
            for rank in (0, 1)
        ]  # fmt: skip
        return {"name": "x", "collective": "allreduce", "inplace": True, "protocol": "LL", "gpus": gpus, **more}

    def verified(self, plan: dict[str, Any], tmp_path: Path) -> bool:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        return verify_file(path)[1].ok

    def test_packets(self, tmp_path: Path) -> None:
        """Both ranks write their input as packets into the other's scratch, which adds it when it is there."""
        put = {"name": "ppkt", "src_buff": [{"type": "i", "index": 0, "size": 2}],
               "dst_buff": [{"buffer_id": 0, "index": 0, "size": 2}], "channel_type": "memory"}  # fmt: skip
        add = {"name": "repkt", "src_buff": [WHOLE, LANDED], "dst_buff": [WHOLE]}
        assert self.verified(self.plan(lambda _: [{"ops": [put, add]}]), tmp_path)
        assert not self.verified(self.plan(lambda _: [{"ops": [add, put]}]), tmp_path)
        assert not self.verified(self.plan(lambda rank: [{"ops": [put, add] if rank else [put]}]), tmp_path)

    def test_switches_and_groups_of_blocks(self, tmp_path: Path) -> None:
        """Each rank adds up one chunk for all; two blocks do half of it each, then the ranks meet."""

        def block(rank: int, part: int) -> dict[str, Any]:
            place = [{"switch_channel_id": 0, "index": rank, "size": 1}]
            group = {"tb_id": part, "tbg_size": 2}
            return {
                "ops": [
                    {"name": "glres", "src_buff": place, "dst_buff": place, "channel_type": "switch", "tbg_info": group}
                ]
            }

        assert self.verified(self.plan(lambda rank: [block(rank, 0), block(rank, 1)]), tmp_path)
        assert not self.verified(self.plan(lambda rank: [block(rank, 0), block(rank, 0)]), tmp_path)

    def test_barriers_and_semaphores(self, tmp_path: Path) -> None:
        put = {"name": "ppkt", "src_buff": [{"type": "i", "index": 0, "size": 2}],
               "dst_buff": [{"buffer_id": 0, "index": 0, "size": 2}], "channel_type": "memory"}  # fmt: skip
        take = {"name": "upkt", "src_buff": [LANDED], "dst_buff": [LANDED]}
        add = {"name": "re", "src_buff": [WHOLE, LANDED], "dst_buff": [WHOLE]}
        barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
        first = [put, take, barrier, {"name": "sem_release", "semaphore_ids": [0]}]
        second = [barrier, {"name": "sem_acquire", "semaphore_ids": [0]}, add]
        assert self.verified(self.plan(lambda _: [{"ops": first}, {"ops": second}]), tmp_path)
        assert not self.verified(self.plan(lambda _: [{"ops": first[:2]}, {"ops": second}]), tmp_path)
        assert not self.verified(self.plan(lambda _: [{"ops": first}, {"ops": [add]}]), tmp_path)


class TestSettings:
    def test_tuner_of_a_choice(self, tmp_path: Path) -> None:
        found = library_choice("allreduce", on="64xh100-sxm")
        path = tmp_path / "tuner.csv"
        path.write_text(choice_text(found))
        rules = read_collective(path).rules
        assert [(rule.algorithm, rule.protocol) for rule in rules] == [
            (one.algorithm, one.protocol.lower()) for one in found.ranges
        ]
        for size in (1e3, 1e6, 1e9):
            rule = next(one for one in rules if one.fits("allreduce", size, 64))
            chosen = library_choice("allreduce", on="64xh100-sxm", size=size).chosen
            assert (rule.algorithm, rule.protocol) == (chosen.algorithm, chosen.protocol.lower())
        assert not any(one.fits("allreduce", 1e6, 32) for one in rules)

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("allreduce,100,0,ring,ll,-1,-1,-1", "a range"),
            ("allreduce,0,100,ring,ll,-1,-1", "8 to 10"),
            ("allreduce,0,1e9,ring,ll,-1,-1,-1", "max_bytes"),
            ("allreduce,0,100,ring,ll,-2,-1,-1", "channels"),
            ("allreduce,0,100,ring,ll,-1,4,2", "at least one a node"),
            ("gossip,0,100,ring,ll,-1,-1,-1", "collective_type"),
            ("# nothing", "no rule"),
        ],
    )
    def test_tuner_rules(self, line: str, told: str) -> None:
        with pytest.raises(InputError, match=told):
            read_tuner(Path("x"), line)

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("allgather,0,100,tree,ll,-1,-1,-1", "allreduce only"),
            ("broadcast,0,32768,tree,simple,-1,1,-1,-1,1", "tree for broadcast"),
            ("allreduce,0,100,nvls,ll,-1,-1,-1", "simple"),
            ("allreduce,0,100,pat,simple,-1,-1,-1", "allgather"),
        ],
    )
    def test_tuner_rules_that_nccl_passes_by_are_read_with_a_warning(self, line: str, told: str) -> None:
        """NCCL's own example configuration asks for a tree broadcast."""
        bad, good = read_tuner(Path("x"), line + "\nallreduce,0,9,ring,ll,-1,-1,-1\n")
        assert told in bad.without_effect
        assert not bad.fits(bad.collective, bad.min_bytes, 8)
        assert good.without_effect == ""
        assert line.split(",")[3] not in tuner_text((bad, good)).splitlines()[-1]

    def test_hccl(self) -> None:
        found = library_choice("allreduce", on="64xascend-910b2", size=1e5, library="hccl")
        assert choice_text(found).startswith('HCCL_ALGO="level0:NA;level1:')  # a shell would cut it at the semicolon
        (setting,) = read_hccl(Path("x"), choice_text(found))
        assert setting.levels == ((0, "NA"), (1, found.chosen.algorithm))
        (one,) = read_hccl(Path("x"), 'export HCCL_ALGO="allreduce=level0:NA;level1:NHR;level2:NB"')
        assert (one.operator, one.levels[-1]) == ("allreduce", (2, "NB"))
        for text in ("HCCL_ALGO=level0:ring", "HCCL_ALGO=level1:NHR", "HCCL_ALGO=level0:NA;level1:fast", "HCCL=1", "",
                     "HCCL_ALGO=dance=level0:NA"):  # fmt: skip
            with pytest.raises(InputError):
                read_hccl(Path("x"), text)

    def test_only_the_own_library(self) -> None:
        with pytest.raises(InputError, match="nccl-tuner with --library nccl"):
            choice_text(library_choice("allreduce", on="8xmi300x", library="rccl"))


@pytest.mark.parametrize("text", [b"", b"\x00\xff", b"<", b"{", b"[]", b"{}", b"<algo/>", b"\xff\xfe<algo>", b"a,b"])
def test_hostile_bytes(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(InputError):
        read_collective(path)
    with pytest.raises(InputError):
        read_collective(tmp_path / "absent")


def test_what_never_ends_or_is_far_too_large_is_refused_at_once() -> None:
    for given in (lambda: read_collective(Path("/dev/zero")),
                  lambda: answered("alltoallv", topology="ring:4", matrix="/dev/zero"),
                  lambda: target_text(symmetric_allgather(topology("torus:32x32", 1e9)), "msccl")):  # fmt: skip
        with pytest.raises(InputError, match="at most"):
            given()


def test_a_problem_of_every_order_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    plan = json.loads(target_text(named("allreduce", "ring:3", "ring"), "mscclpp"))
    del plan["gpus"][0]["threadblocks"][0]["ops"][0]
    path.write_text(json.dumps(plan))
    found = read_collective(path).verification
    assert found is not None
    assert not found.ok
    assert len(set(found.problems)) == len(found.problems)


def test_no_byte_of_a_file_breaks_the_reader(tmp_path: Path) -> None:
    """Damaged at random: read and judged, or refused; nothing else."""
    drawn = np.random.default_rng(7)
    path = tmp_path / "file"
    for target in ("msccl", "mscclpp"):
        whole = target_text(named("allreduce", "ring:3", "ring"), target).encode()
        for _ in range(60):
            damaged = bytearray(whole)
            for place in drawn.integers(0, len(whole), 3):
                damaged[place] = int(drawn.integers(32, 127))
            path.write_bytes(bytes(damaged))
            with suppress(InputError):
                read_collective(path)


def test_the_command_line(tmp_path: Path) -> None:
    run, path = CliRunner(), tmp_path / "plan.json"
    asked = ["collective", "allgather", "--topology", "torus:3x3", "--size", "1MB", "--synthesize"]
    written = run.invoke(command_line(), [*asked, "--json", "-o", str(path), "--to", "mscclpp"])
    assert written.exit_code == 0
    told = json.loads(run.invoke(command_line(), ["collective", "verify", str(path), "--json"]).stdout)
    assert (told["format"], told["verified"], told["ranks"]) == ("mscclpp", True, 9)
    timed = run.invoke(
        command_line(), ["collective", "verify", str(path), "--topology", "torus:3x3", "--size", "1MB", "--json"]
    )
    assert json.loads(timed.stdout)["seconds"] == pytest.approx(json.loads(written.stdout)["seconds"])
    csv = tmp_path / "tuner.csv"
    chosen = ["collective", "allreduce", "--on", "16xh100-sxm", "--library", "nccl"]
    assert run.invoke(command_line(), [*chosen, "-o", str(csv), "--to", "nccl-tuner"]).exit_code == 0
    assert "tree/ll" in run.invoke(command_line(), ["collective", "verify", str(csv)]).stdout
    for refused in (
        ["collective", "verify", str(path), "--topology", "ring:4"],
        [*asked, "--to", "mscclpp"],
        [*asked, "-o", str(path), "--to", "gloo"],
        [*chosen, "-o", str(csv), "--to", "msccl"],
    ):
        assert isinstance(run.invoke(command_line(), refused).exception, InputError)


def test_a_wrong_sum_names_the_step_that_wrote_it(tmp_path: Path) -> None:
    lines = target_text(named("allreduce", "ring:3", "ring"), "msccl").splitlines()
    last = max(row for row, line in enumerate(lines) if 'type="r"' in line)
    lines[last] = re.sub(r'dstoff="(\d)"', lambda found: f'dstoff="{(int(found[1]) + 1) % 3}"', lines[last])
    path = tmp_path / "astray.xml"
    path.write_text("\n".join(lines))
    found = read_collective(path).verification
    assert found is not None
    assert not found.ok
    assert re.search(
        r"another sum for chunk \d in o\[\d\] of rank 2, written by step \d of rank 2, block \d", str(found)
    )
