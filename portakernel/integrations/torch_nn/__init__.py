"""portakernel's ops inside models of torch.nn, layer by layer: ``portakernel.patch(model)``.

docs/nn.md says which layers are served, and by what.
"""

from __future__ import annotations

from portakernel.integrations.torch_nn.patched import Patched, patch

__all__ = ["Patched", "patch"]
