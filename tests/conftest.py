"""One thread for each of pytest's processes, and those that tests start: as many processes run as there are cores."""

import os
import sys

# Before torch is imported: what its threads take then, waiting for each other, is half of a run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
