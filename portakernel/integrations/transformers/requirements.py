"""Which versions of transformers the integration knows."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version

from packaging.specifiers import SpecifierSet

from portakernel.errors import PortakernelError

TESTED = SpecifierSet(">=5.17,<5.24")


class UnsupportedVersionError(PortakernelError, ImportError):
    """transformers is absent, or of a version whose extension points nobody has tried with this integration."""


def check_version() -> None:
    """Refuses versions that were not tested: extension points, and what models pass to them, change between versions.

    Raises:
        UnsupportedVersionError: with what is installed and what is accepted.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedVersionError(
            f"portakernel.integrations.transformers needs transformers {TESTED}, which is not installed;"
            " install portakernel[transformers]"
        )
    found = version("transformers")
    if not TESTED.contains(found, prereleases=True):
        raise UnsupportedVersionError(
            f"portakernel.integrations.transformers was tested with transformers {TESTED}; {found} is installed, whose"
            " masks and extension points may differ. Install a tested version"
        )
