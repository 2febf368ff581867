"""Where stores of records are: a user's own, and what ships with portakernel; and why one cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

from portakernel.host.cache_folder import default_folder, refusal

# What to do about a store that cannot be used.
REMEDY = "PORTAKERNEL_TUNING_DIR names another folder"


def own_root(tuning_dir: str | None) -> Path:
    """The store that ``portakernel tune`` writes; ``tuning_dir`` is ``PORTAKERNEL_TUNING_DIR``."""
    named = tuning_dir or os.path.join(default_folder(), "tuning")
    return Path(named if named.startswith("~") else os.path.abspath(named))


def defaults_root() -> Path:
    """The records that ship with portakernel, below a user's own."""
    return Path(__file__).with_name("defaults")


def reading_trouble(root: Path) -> str:
    """Why a store's records cannot be read, in words that follow its name; empty where they can, or none is there."""
    try:
        with os.scandir(root):
            pass
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        return "is no directory"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if os.access(root, os.X_OK) else "cannot be read (what is in it may not be opened)"


def writing_trouble(root: Path) -> str:
    """Why no record can be kept in a store, in words that follow its name; empty where one can. The folder is made."""
    from portakernel.tuning.record import MOST_BYTES  # its models cost those who only read the name nothing

    return reading_trouble(root) or refusal(root, size=MOST_BYTES)
