"""What SGLang's plugin loader calls, in each of its processes.

It stands outside of the package ``sglang`` and imports nothing of ours: what fails while SGLang imports this module is
a line in its log, and the engine goes on.
"""

from __future__ import annotations

import os


class PluginAbort(SystemExit):
    """Ends a process of SGLang, whose loader turns every Exception of a plugin into a line of its log, and goes on."""


def enable_by_environment() -> None:
    """Enables what ``PORTAKERNEL_CLIENTS`` names for SGLang; without it, or for other clients alone, changes nothing.

    Raises:
        PluginAbort: it was asked for and cannot be done: a word that does not exist, a version of SGLang that was not
            tested, a hook without a target, a package that is broken. An engine that went on would compute all by
            itself, and nobody would know.
    """
    asked = os.environ.get("PORTAKERNEL_CLIENTS")
    if not asked:
        return
    try:
        from portakernel.config import Config

        wanted = Config.from_environment().clients.get("sglang")
        if wanted is None:
            return
        from portakernel.integrations.sglang import enable

        enable(wanted)
    except Exception as error:
        text = f"PORTAKERNEL_CLIENTS is {asked!r}, and portakernel cannot do that here: {type(error).__name__}: {error}"
        raise PluginAbort(text) from error
