"""What vLLM's plugin loader calls, in each of its processes, and several times."""

from __future__ import annotations

from portakernel.config import Config


def enable_by_environment() -> None:
    """Enables what ``PORTAKERNEL_CLIENTS`` names for vLLM; without it, or for other clients alone, changes nothing.

    vLLM lets what is raised here end the process (0.32): only what keeps this module from being imported is a line in
    its log.

    Raises:
        ConfigError: a client or an op that does not exist.
        As ``enable``.
    """
    wanted = Config.from_environment().clients.get("vllm")
    if wanted is None:
        return
    from portakernel.integrations.vllm import enable

    enable(wanted)
