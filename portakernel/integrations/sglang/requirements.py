"""Which version of SGLang the integration knows: one, because its layers and hooks change between versions."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from portakernel.integrations.versions import Tested

TESTED = Tested("sglang", SpecifierSet("==0.5.23"), "sglang==0.5.23")
