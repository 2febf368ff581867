"""The version of what plugins and backends are written against, and which versions this portakernel runs.

The plugin API is what a package outside meets: the manifests' keys and their meaning, how kernels, probes and builds
are called, the hooks, and the names of ``portakernel.authoring``. ``PLUGIN_API`` counts its incompatible changes; a
manifest says with ``plugin_api: N`` which one its package is written for. To change it: raise ``PLUGIN_API``, leave
``OLDEST_PLUGIN_API`` where packages of older versions still run, and say in ``CHANGELOG.md`` what they have to change.
"""

from __future__ import annotations

import importlib.metadata

# 2: one door, portakernel.authoring; what packages of version 1 import stays where it was until the first release.
PLUGIN_API = 2
OLDEST_PLUGIN_API = 1


def fits(version: int) -> bool:
    """Whether packages written for ``version`` run here."""
    return OLDEST_PLUGIN_API <= version <= PLUGIN_API


def misfit(version: int) -> str:
    """Why a package written for ``version`` is refused, which versions fit, and what to do."""
    here = importlib.metadata.version("portakernel")
    accepted = str(PLUGIN_API) if OLDEST_PLUGIN_API == PLUGIN_API else f"{OLDEST_PLUGIN_API} to {PLUGIN_API}"
    way_out = (
        "upgrade portakernel"
        if version > PLUGIN_API
        else "upgrade the package, or install an older portakernel with it"
    )
    return f"is {version}; portakernel {here} runs packages written for plugin API {accepted}: {way_out}"
