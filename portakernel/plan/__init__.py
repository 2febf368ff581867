"""Plans: files that people review, which say what kernel serves calls of given kinds and sizes, by kind of device."""

from portakernel.plan.plan import Entry, Lock, Pin, Place, Plan
from portakernel.plan.reading import read_form, read_plan

__all__ = ["Entry", "Lock", "Pin", "Place", "Plan", "read_form", "read_plan"]
