"""Whether a stream is being captured: what is launched then is recorded into a graph, and nothing may be waited for.

No torch here: where it was not imported, nothing is captured.
"""

from __future__ import annotations

import sys


def is_capturing() -> bool:
    """Whether this thread's current stream is being captured into a CUDA (or HIP) graph; makes no device context."""
    torch = sys.modules.get("torch")
    # a build without CUDA cannot be asked; where no context exists nothing is captured
    return torch is not None and torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())
