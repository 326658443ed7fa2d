"""Device names and the chips they mean, with and without the memory that a driver or a trace tells."""

from __future__ import annotations

import pytest

from ridgeline.hardware.device_names import chip_id, names_table, skypilot_names
from ridgeline.hardware.load import CHIPS


@pytest.mark.parametrize(
    ("name", "memory", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", 0, "h100-sxm"),  # HBM3 is the SXM5 part
        ("NVIDIA H100 80GB HBM3", 85_000_000_000, "h100-sxm"),
        ("NVIDIA H100", 0, "h100-sxm"),
        ("NVIDIA H100", 99_000_000_000, "h100-96-hbm2e-500w"),
        ("NVIDIA H100 PCIe", 0, "h100-pcie"),
        ("NVIDIA H100 NVL", 0, None),
        ("NVIDIA A100-SXM4-80GB", 0, "a100-80-sxm"),
        ("NVIDIA A100-SXM4-40GB", 0, "a100-40-sxm"),
        ("NVIDIA A100 80GB PCIe", 0, "a100-80-pcie"),
        ("NVIDIA A100-PCIE-40GB", 0, "a100-40-pcie"),
        ("NVIDIA H200", 0, "h200-sxm"),
        ("NVIDIA H200 NVL", 0, "h200-nvl"),
        ("NVIDIA H20", 0, "h20-96"),
        ("NVIDIA H20-3e", 0, "h20-141"),
        ("NVIDIA H800 PCIe", 0, None),
        ("NVIDIA GH200 480GB", 0, "gh200-96"),
        ("NVIDIA GH200 144G HBM3e", 0, "gh200-144"),
        ("NVIDIA B200", 0, "b200-sxm"),
        ("NVIDIA GB200", 0, "gb200-nvl72"),
        ("Tesla V100-PCIE-16GB", 16_945_512_448, "v100-16-pcie"),
        ("Tesla V100-PCIE-32GB", 0, "v100-32-pcie"),
        ("NVIDIA A10G", 23_836_098_560, "a10g"),
        ("NVIDIA A10", 0, "a10"),
        ("NVIDIA A40", 0, "a40"),
        ("NVIDIA GeForce RTX 2080 Ti", 0, "rtx2080ti"),
        ("NVIDIA GeForce RTX 4060", 0, "rtx4060"),
        ("NVIDIA GeForce RTX 4060 Ti", 0, None),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 0, None),
        ("AMD Instinct MI300X", 0, "mi300x"),
        ("AMD Instinct MI300A", 0, None),
        ("NVIDIA H200", 150e9, "h200-sxm"),
        ("NVIDIA H100 PCIe", 85e9, "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", 42e9, "a100-40-sxm"),
        ("NVIDIA A100-SXM4-80GB", 85e9, "a100-80-sxm"),
        ("NVIDIA GB200", 190e9, "gb200-nvl72"),
        ("NVIDIA L4", 24e9, "l4"),
        ("NVIDIA L40S", 48e9, "l40s"),
        ("AMD Instinct MI300X", 206e9, "mi300x"),
        ("Ascend910B2", 64e9, "ascend-910b2"),
        ("AMD EPYC", 25e9, None),
    ],
)
def test_a_device_name_means_one_chip(name: str, memory: float, chip: str | None) -> None:
    assert chip_id(name, memory) == chip


def test_names_are_of_chips_with_memory() -> None:
    table = names_table()
    assert all(names["memory_bytes"] == CHIPS[id].need("hbm.capacity").value for id, names in table.items())
    assert {id for id in CHIPS if "names" in CHIPS.table(id)} == set(table)
    assert skypilot_names()["h100-sxm"] == "H100"
