"""What cannot be emulated, said before anything runs."""

from __future__ import annotations

from portakernel.errors import PortakernelError

NO_TABLES = (
    "the emulator reads AMD's instruction tables from tinygrad, which is not installed; "
    "`pip install 'portakernel[emulate]'` installs it"
)


class EmulationError(PortakernelError, ValueError):
    """A code object or a launch that cannot be emulated: which part of it, what it holds, and what is accepted."""
