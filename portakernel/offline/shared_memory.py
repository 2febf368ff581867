"""How much memory the threads of one program may share on a target, as its backend's manifest says."""

from __future__ import annotations

from portakernel.registry.registry import Registry
from portakernel.words.target import Target

_KIB = 1024


def available_bytes(registry: Registry, target: Target) -> int | None:
    """What one program may share on ``target``; None where no backend says so, as for an arch newer than its list."""
    backend = next((known for known in registry.backends.values() if known.vendor == target.vendor), None)
    facts = backend.archs.get(target.arch) if backend is not None else None
    return None if facts is None or facts.shared_memory_kib is None else facts.shared_memory_kib * _KIB
