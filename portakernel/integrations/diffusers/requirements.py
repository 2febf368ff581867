"""Which version of diffusers the integration knows: one, because what it enters there is private."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from portakernel.integrations.versions import Tested

TESTED = Tested("diffusers", SpecifierSet("==0.42.1"), "diffusers==0.42.1")
