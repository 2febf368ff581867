"""vLLM's cache of compiled graphs: its key has to say what portakernel serves.

A graph that was compiled without portakernel would be loaded again with it, serve nothing and say nothing; so would one
the other way round. vLLM's key holds the values of all variables in ``vllm.envs.environment_variables``; there
``digest`` is entered as one more.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable

import portakernel
from portakernel.config import PREFIX
from portakernel.runtime import dispatcher

FACTOR = "PORTAKERNEL"
# What changes no graph: where things are kept, how much, and what is told.
_IMMATERIAL = frozenset(PREFIX + name for name in ("CACHE_DIR", "CACHE_MIB", "CLIENTS", "LOG", "PATIENCE_S", "RECORD"))


def digest(words: Iterable[str]) -> str:
    """Of what the ops in a graph depend on: the layers served, versions, settings, the policy, a plan by its path."""
    settings = {name: text for name, text in os.environ.items() if name.startswith(PREFIX) and name not in _IMMATERIAL}
    packages = sorted((state.package.name, state.package.version) for state in portakernel.plugins())
    policy = repr(dispatcher().process_policy.layers)
    stated = [sorted(words), portakernel.__version__, settings, packages, policy]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
