"""Which versions of a client its integration was tested with; others are refused."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from portakernel.errors import PortakernelError


class UnsupportedVersionError(PortakernelError, ImportError):
    """A client is absent, or of a version whose extension points nobody has tried with its integration."""


@dataclass(frozen=True, slots=True)
class Tested:
    """A client's module, the distributions that bring it, and the versions that its integration was tested with.

    ``install`` is what brings a tested version, as the user types it.
    """

    client: str
    versions: SpecifierSet
    install: str
    distributions: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuses other versions: extension points, and what clients pass to them, change between versions.

        Raises:
            UnsupportedVersionError: with what is installed and what is accepted.
        """
        if importlib.util.find_spec(self.client) is None:
            raise UnsupportedVersionError(
                f"portakernel.integrations.{self.client} needs {self.client} {self.versions}, which is not installed;"
                f" install {self.install}"
            )
        installed = self.installed()
        if not self.versions.contains(installed, prereleases=True):
            raise UnsupportedVersionError(
                f"portakernel.integrations.{self.client} was tested with {self.client} {self.versions}; {installed} is"
                " installed, whose extension points may differ. Install a tested version"
            )

    def installed(self) -> str:
        """The version of the distribution that is installed; of none that is known, ``unknown``."""
        for distribution in self.distributions or (self.client,):
            try:
                return version(distribution)
            except PackageNotFoundError:
                continue
        return "0+unknown"
