"""Shadow verification's judge: the results of a call that was served, held against the float64 reference.

The core loads it by name when there is something to judge (docs/shadow.md); services that verify nothing go without.
"""

from portakernel_kit.shadow.judging import judge

__all__ = ["judge"]
