"""The directories in which Inductor keeps code: pickles, Python, libraries and Triton's kernels, which it runs unasked.

By default that is a folder of ``/tmp`` with a name that everybody knows, and whoever makes it first decides what runs.
Before something is built here it is looked at; nothing is changed for who uses Inductor otherwise, unless the folder is
another's.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from portakernel.authoring import Rejection
from portakernel.authoring.host import CompilerCache, distrust, make_folder

# What one graph brings: its source, and a library.
_GRAPH_BYTES = 256 << 10


class _Inductor(CompilerCache):
    def use(self, private: str) -> None:
        """Has Inductor use another one, and forget what it remembers of files in the first."""
        super().use(private)
        utils: Any = sys.modules.get("torch._inductor.utils")
        if utils is not None:
            utils.clear_caches()


def _default() -> str:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return default_cache_dir()


FOLDER = _Inductor("Inductor's cache directory", "TORCHINDUCTOR_CACHE_DIR", _default, size=_GRAPH_BYTES)
# Inductor has Triton use a folder of its own, unless there is a variable that names one.
_TRITON = CompilerCache("Triton's cache directory", "TRITON_CACHE_DIR", str, size=_GRAPH_BYTES)


def settle() -> Rejection | None:
    """Sees to it that Inductor has directories that can be used; why there are none."""
    rejection = FOLDER.settle()
    if rejection is None and os.environ.get(_TRITON.variable):
        rejection = _TRITON.settle()
    return rejection


def settings() -> dict[str, bool]:
    """What has to be said to Inductor of files that it keeps elsewhere than in its directory.

    Precompiled headers, which are compiled into every library, are in the folder that it uses by default, always.
    """
    folder = Path(_default())
    with suppress(OSError):
        make_folder(folder)  # or somebody else could, before Inductor does
    return {"cpp_cache_precompile_headers": False} if distrust(folder) else {}
