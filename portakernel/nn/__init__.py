"""Modules whose forward is an op, with weights named as torch's: ``RMSNorm``, ``LayerNorm``, ``SwiGLU``, ``Attention``.

::

    from portakernel import nn

    norm = nn.RMSNorm(4096)  # in place of torch.nn.RMSNorm(4096)
    norm.load_state_dict(torch.nn.RMSNorm(4096).state_dict())  # and the other way round

docs/nn.md says whose names, defaults and numbers each has, and where they differ from torch's.
"""

from __future__ import annotations

from portakernel.nn.attention import Attention
from portakernel.nn.norms import LayerNorm, RMSNorm
from portakernel.nn.swiglu import SwiGLU

__all__ = ["Attention", "LayerNorm", "RMSNorm", "SwiGLU"]
