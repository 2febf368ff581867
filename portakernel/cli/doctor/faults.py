"""Broken packages: where they broke, and what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from portakernel.registry.plugin_manager import Broken

# What to do about a broken package, by the stage at which it broke.
REMEDIES: Mapping[str, str] = {
    "discovery": "reinstall {distribution}, or uninstall it",
    "name": "uninstall one of the distributions, or ask the maintainers of {distribution} to rename",
    "api_version": "install versions of {distribution} and portakernel that go together",
    "manifest": "run `portakernel validate`; upgrade {distribution}, or correct the manifest if it is yours",
    "kernels": "run `portakernel validate`; upgrade {distribution}, or correct the manifest if it is yours",
    "import": "upgrade {distribution}, or install what its import lacks; --verbose shows the traceback",
    "ready": "upgrade {distribution}; --verbose shows the traceback",
    "check": "upgrade {distribution}; --verbose shows the traceback",
    "built": "upgrade {distribution}; --verbose shows the traceback",
    "hook": "upgrade {distribution}; --verbose shows the traceback",
}
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+)(?:, in (.+))?$', re.MULTILINE)


def remedy(broken: Broken) -> str:
    """What to do about a broken package."""
    text = REMEDIES.get(broken.stage, "upgrade {distribution}").format(distribution=broken.package.distribution)
    if broken.stage == "name":  # that name is another package's, which switching off would hit
        return text
    return f"{text}. PORTAKERNEL_DISABLE={broken.package.name} switches it off"


def location(broken: Broken) -> str:
    """Where in the package's own files it broke, by the traceback; empty where no frame of it is there."""
    if broken.package.folder is None:
        return ""
    inside = f"{broken.package.folder}{os.sep}"
    frames = [frame for frame in _FRAME.findall(broken.traceback) if frame[0].startswith(inside)]
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f"{file}:{line}" + (f", in {function}" if function else "")
