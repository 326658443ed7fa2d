"""Sized systems: names, domains, slices, own files, and what each topology implies."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.core.errors import InputError, MissingNumber, UnknownId
from ridgeline.hardware.load import system
from ridgeline.hardware.topology import (
    Ethernet,
    FatTree,
    FullMesh,
    Ring,
    Switched,
    Torus,
    TorusRule,
    bisection_bytes_per_s,
    diameter,
    label,
)


def sizes(name: str) -> list[tuple[str, int]]:
    return [(tier.name, tier.chips) for tier in system(name).tiers]


def test_default_node_and_fabric() -> None:
    assert sizes("64xh100-sxm") == [("nvlink", 8), ("infiniband", 64)]
    assert sizes("4xh100-sxm") == [("nvlink", 4)]
    assert sizes("h100-sxm") == []
    assert sizes("dgx-h100") == [("nvlink", 8)]
    assert sizes("64xdgx-h100") == sizes("64xh100-sxm")


def test_nvl72_is_filled_to_64_by_custom() -> None:
    assert sizes("256xgb200-nvl72")[0] == ("nvlink", 64)
    assert sizes("72xgb200-nvl72")[0] == ("nvlink", 72)
    built = system({"base": "144xgb200-nvl72", "domain": 72})
    assert [tier.chips for tier in built.tiers][:2] == [72, 144]
    assert sizes("96xgb200-nvl72")[0] == ("nvlink", 48)  # two equal halves rather than 64 + 32
    assert "48 of each 72-chip" in system("96xgb200-nvl72").assumptions[0]


def test_torus_slices() -> None:
    cube = system("tpu-v5p:8x8x8")
    assert cube.chips == 512
    assert cube.tiers[0].topology == Torus(shape=(8, 8, 8), wraps=(True, True, True))
    assert system("512xtpu-v5p").tiers[0].topology == cube.tiers[0].topology
    flat = system("128xtpu-v5e").tiers[0].topology
    assert flat == Torus(shape=(8, 16), wraps=(False, True))  # an axis wraps only when it spans the pod
    assert [tier.chips for tier in system("512xtpu-v5e").tiers] == [256, 512]  # two pods over the outer network
    assert [tier.chips for tier in system("4xtpu-v5p:4x4x4").tiers] == [64, 256]
    assert system("50944xtpu-v5e").tiers[0].chips == 256


@pytest.mark.parametrize(
    "name",
    [
        "0xh100-sxm",
        "13xh100-sxm",
        "tpu-v5p:8x8x8x8",
        "tpu-v5e:32x32",
        "h100-sxm:2x2",
        "99999999999xh100-sxm",
        "tpu-v5p:0x4x4",
    ],
)
def test_impossible_sizes_are_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        system(name)
    assert not isinstance(caught.value, UnknownId) or "999" in name


@pytest.mark.parametrize("name", ["64xh10-sxm", "", "64x", "x", "../../etc/passwd", "64 h100"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UnknownId):
        system(name)


def test_own_system_file(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(
        """
name = "lab"
chips = 16
node = 4
chip = { base = "h100-sxm", hbm = { bandwidth = "5 TB/s" } }
[[tier]]
name = "ring"
chips = 4
topology = { kind = "ring" }
bandwidth = "100 GB/s"
[[tier]]
name = "ether"
topology = { kind = "ethernet", oversubscription = 2 }
bandwidth = "25 Gbit/s"
"""
    )
    lab = system(tmp_path / "lab.toml")
    assert [(tier.name, tier.chips) for tier in lab.tiers] == [("ring", 4), ("ether", 16)]
    assert lab.chip.hbm.bandwidth is not None
    assert lab.chip.hbm.bandwidth.value == 5e12
    assert lab.tiers[1].need_bandwidth().value == 25e9 / 8


def test_a_file_may_lie_over_others_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "top.toml").write_text('base = "sub/middle.toml"\nchips = 32\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "middle.toml").write_text('base = "low.toml"\n[tier.nvlink]\nbandwidth = "1 TB/s"\n')
    (tmp_path / "sub" / "low.toml").write_text('base = "16xh100-sxm"\nnode = 4\n')
    monkeypatch.chdir(Path(__file__).parent)
    built = system(tmp_path / "top.toml")
    assert (built.chips, built.node, built.tiers[0].need_bandwidth().value) == (32, 4, 1e12)
    assert system(tmp_path / "sub" / "middle.toml").chips == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "loop.toml"', "lead to an end"),
        ('base = "../loop.toml"', "own folder"),
        ('base = "8xh100-sxm"\nchips = 0', "1 to 10,000,000 chips"),
        ('base = "8xh100-sxm"\nchips = true', "got True"),
        ('base = "8xh100-sxm"\ndomain = 1.5', "got 1.5"),
        ('name = "x"', "add chips"),
    ],
)
def test_own_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "loop.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        system(tmp_path / "loop.toml")


def test_what_if_on_a_tier() -> None:
    faster = system({"base": "64xh100-sxm", "tier": {"infiniband": {"bandwidth": "800 Gbit/s"}}})
    assert faster.tiers[1].need_bandwidth().value == 100e9
    with pytest.raises(InputError, match="one of nvlink, infiniband"):
        system({"base": "64xh100-sxm", "tier": {"ethernet": {"bandwidth": "1 GB/s"}}})


def test_missing_rate_is_named() -> None:
    outer = system("16xh20-141").tiers[1]
    with pytest.raises(MissingNumber, match=r"system\.tier\."):
        outer.need_bandwidth()


def test_chip_rate_reaches_the_tier() -> None:
    changed = system("16xh100-sxm", {"scaleup": {"bandwidth": "900 GB/s"}})
    assert changed.tiers[0].need_bandwidth().value == 900e9


@pytest.mark.parametrize(
    ("topology", "chips", "hops", "bisection"),
    [
        (Switched(), 8, 1, 4.0),
        (FullMesh(), 8, 1, 16 / 7),
        (Ring(), 8, 4, 1.0),
        (Ring(), 2, 1, 1.0),
        (Torus(shape=(4, 8), wraps=(False, True)), 32, 3 + 4, 4 * 2 / 4),
        (Torus(shape=(2, 2, 2), wraps=(False,) * 3), 8, 3, 4 / 6),
        (FatTree(rails=8, oversubscription=2), 64, 1, 16.0),
        (Ethernet(), 10, 1, 5.0),
        (Switched(), 1, 0, 0.0),
    ],
)
def test_hops_and_bisection_by_hand(topology: Torus, chips: int, hops: int, bisection: float) -> None:
    assert diameter(topology, chips) == hops
    assert bisection_bytes_per_s(topology, chips, 1.0) == pytest.approx(bisection)
    assert label(topology)


def test_labels_say_what_a_fabric_is_by_default() -> None:
    assert label(FatTree()) == "fat tree, 1 rail, 1:1"
    assert label(FatTree(rails=8, oversubscription=2.0)) == "fat tree, 8 rails, 2:1"


def test_wrap_rules() -> None:
    assert TorusRule(dims=3, max=(16, 16, 16), wrap="multiple-of-4").slice((4, 6, 8)).wraps == (True, False, True)
    assert TorusRule(dims=2, max=(16, 16), wrap="full-only").slice((8, 16)).wraps == (False, True)
    assert TorusRule(dims=2, max=(16, 16), wrap="never").slice((8, 16)).wraps == (False, False)
    assert TorusRule(dims=2, max=(16, 16)).slice((2, 16)).wraps == (False, True)
    assert TorusRule(dims=2, max=(16, 16)).shape_for(17) is None
