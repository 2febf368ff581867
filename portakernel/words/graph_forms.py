"""The forms that a kernel may have in a compiled graph.

*inline*: its torch operators themselves, which Inductor fuses with what stands around them. *kernel*: a Triton kernel
that Inductor launches by itself. *call*: the op as one node, whose kernel the graph names.
"""

from __future__ import annotations

from typing import Literal, get_args

GraphForm = Literal["inline", "kernel", "call"]
GRAPH_FORMS: tuple[GraphForm, ...] = get_args(GraphForm)
