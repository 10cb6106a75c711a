# pyright: basic, reportMissingImports=false
"""A verl platform for machines without an accelerator: torch on the CPU, gloo between processes."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform


def _device() -> ModuleType:
    """Return a stand-in for `torch.cuda`."""
    module = ModuleType("cpu_device")
    nothing = ("empty_cache", "synchronize", "set_device", "set_per_process_memory_fraction", "manual_seed")
    amounts = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    vars(module).update(
        {name: lambda *_given: None for name in nothing},
        **{name: lambda *_given: 0 for name in amounts},
        mem_get_info=lambda *_given: (0, 0),
        is_available=lambda: False,
        get_device_name=lambda *_given: "cpu",
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The CPU. verl counts "GPUs" in Ray; here each is a process, and Ray is told their number."""

    def __init__(self) -> None:
        self._module = _device()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Accelerators take precedence: this platform is chosen by name, or if there is no other.
        return False

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Generator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


if os.environ.get("AGENTFLOW_VERL_DEVICE") == "cpu":
    set_platform(CpuPlatform())
