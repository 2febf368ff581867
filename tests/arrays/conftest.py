"""Puts this folder on the path, for what its tests share, and says what JAX shall not look for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
# JAX looks for GPUs otherwise, and says that there are none.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
