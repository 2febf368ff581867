"""The machine as probes and compilers meet it: files that may be trusted, folders, locks, drivers, torch's build."""

from __future__ import annotations

from portakernel.host.cache_folder import CacheWarning, distrust, make_folder
from portakernel.host.compiler_cache import CompilerCache
from portakernel.host.driver_query import query
from portakernel.host.locks import make_lock
from portakernel.host.ownership import trouble_with
from portakernel.host.passing import is_exhausted, is_passing
from portakernel.host.private_folder import make_private
from portakernel.host.regular_file import read_regular
from portakernel.tensors import torch_build
from portakernel.tensors.torch_build import TorchBuild
from portakernel.tensors.visibility import visible_to_cuda, visible_to_hip, visible_to_rocr

__all__ = [
    "CacheWarning",
    "CompilerCache",
    "TorchBuild",
    "distrust",
    "is_exhausted",
    "is_passing",
    "make_folder",
    "make_lock",
    "make_private",
    "query",
    "read_regular",
    "torch_build",
    "trouble_with",
    "visible_to_cuda",
    "visible_to_hip",
    "visible_to_rocr",
]
