"""What all tests share: one thread for each process, and first-party manifests that are read once."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portakernel import plugin_manager
from portakernel.manifest_file import load_manifest

# Before torch is imported: as many processes run as there are cores, and what torch's threads take then, waiting for
# each other, is half of a run. Those that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

ROOT = Path(__file__).parents[1]
OURS = (ROOT / "plugins", ROOT / "backends")


@pytest.fixture(scope="session", autouse=True)
def _manifests_are_read_once() -> Iterator[None]:
    """Most tests have a registry of their own, which takes 0.1 s, and nearly half of that to read the same files."""
    read: dict[Any, Any] = {}

    def load(model: Any, path: Path, **options: Any) -> Any:
        if not any(folder in path.parents for folder in OURS):
            return load_manifest(model, path, **options)
        key = model, path, path.stat().st_mtime_ns, *options.items()
        if key not in read:
            read[key] = load_manifest(model, path, **options)
        return read[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin_manager, "load_manifest", load)
        yield
