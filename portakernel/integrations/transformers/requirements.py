"""Which versions of transformers the integration knows."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from portakernel.integrations.versions import Tested

TESTED = Tested("transformers", SpecifierSet(">=5.17,<5.24"), "portakernel[transformers]")
