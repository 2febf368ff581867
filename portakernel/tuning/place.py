"""Where stores of records are: a user's own, and what ships with portakernel."""

from __future__ import annotations

import os
from pathlib import Path

from portakernel.host.cache_folder import default_folder


def own_root(tuning_dir: str | None) -> Path:
    """The store that ``portakernel tune`` writes; ``tuning_dir`` is ``PORTAKERNEL_TUNING_DIR``."""
    return Path(os.path.abspath(tuning_dir or os.path.join(default_folder(), "tuning")))


def defaults_root() -> Path:
    """The records that ship with portakernel, below a user's own."""
    return Path(__file__).with_name("defaults")
