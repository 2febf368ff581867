"""portakernel: call GPU operators by name, get the fastest correct kernel for the device, and the reasons.

Importing this package imports neither torch nor any plugin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from portakernel.host.as_written import as_written
from portakernel.host.forks import unsplit
from portakernel.host.start_folder import START_FOLDER as _START_FOLDER  # noqa: F401 - before the program leaves it
from portakernel.torch_import import offer_ops

if TYPE_CHECKING:
    from portakernel import errors, masks, metrics, nn, ops, paging, shadow

    __version__: str
    from portakernel.api import (
        bind,
        explain,
        load_policy,
        plugins,
        policy,
        set_policy,
        stats,
        targets,
        use,
        warmup,
    )
    from portakernel.integrations.torch_nn import patch
    from portakernel.manifest.api_version import PLUGIN_API
    from portakernel.routing import agree, load_plan, load_tuning, record
    from portakernel.warming.outcome import Call

__all__ = [
    "PLUGIN_API", "Call", "agree", "bind", "errors", "explain", "load_plan", "load_policy", "load_tuning", "masks",
    "metrics", "nn", "ops", "paging", "patch", "plugins", "policy", "record", "set_policy", "shadow", "stats",
    "targets", "use", "warmup",
]  # fmt: skip
_OF_ROUTING = ("agree", "load_plan", "load_tuning", "record")


@as_written
def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        # read once: commands ask for each kernel
        return globals().setdefault(name, version("portakernel"))
    if name in ("errors", "masks", "metrics", "nn", "ops", "paging", "shadow"):
        with unsplit(f"importing portakernel.{name}"):
            return importlib.import_module(f"portakernel.{name}")
    if name == "PLUGIN_API":
        from portakernel.manifest.api_version import PLUGIN_API

        return PLUGIN_API
    if name in __all__:
        module = "portakernel.routing" if name in _OF_ROUTING else "portakernel.api"
        module = "portakernel.integrations.torch_nn" if name == "patch" else module
        with unsplit(f"importing {module}"):
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'portakernel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


# What has to happen at import, because a program that is loaded asks torch for its ops, and not portakernel.
offer_ops()
