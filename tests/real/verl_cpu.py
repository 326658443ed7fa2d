"""Let verl 0.9 train and vLLM 0.32 generate without an accelerator: `VERL_USE_EXTERNAL_MODULES=verl_cpu`.

What they lack on a CPU, and nothing else: a platform whose device is "cpu", one communication backend where verl names
two, a device module that knows of no memory, and linear layers that leave their weights where the next ones are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

MEMORY = 8 << 30  # bytes that are said to be there: nothing on a CPU asks for them


class CpuDevice(ModuleType):
    """`torch.cpu` with the questions that verl asks of an accelerator."""

    def __init__(self) -> None:
        super().__init__("torch.cpu")

    def __getattr__(self, name: str) -> Any:
        if "memory" in name and name != "mem_get_info":
            return lambda *_, **__: 0
        return getattr(torch.cpu, name)

    def mem_get_info(self, *_: object) -> tuple[int, int]:
        return MEMORY, MEMORY

    def set_device(self, *_: object) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def ipc_collect(self) -> None:
        return None

    def get_device_name(self, *_: object) -> str:
        return "cpu"

    def get_rng_state(self, *_: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: object) -> None:
        torch.set_rng_state(state)


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    """A CPU as verl's accelerator; Ray is told of one GPU that stands for it."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CpuDevice()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"  # what tensors are moved to

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def cudart(self) -> Any:
        return None


def _one_backend() -> None:
    """`cpu:gloo,cpu:gloo`, which torch refuses, is gloo."""
    begin: Callable[..., Any] = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, **more: Any) -> None:
        begin(backend="gloo" if backend and set(backend.split(",")) == {"cpu:gloo"} else backend, **more)

    torch.distributed.init_process_group = init_process_group


def _plain_linear() -> None:
    """vLLM's linear layers on a CPU pack their weights away: new ones could not be loaded into them."""
    import vllm.model_executor.layers.utils as layers

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = dispatch


os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")  # the FSDP engine asks its platform for devices
_one_backend()
_plain_linear()
