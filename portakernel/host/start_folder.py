"""The folder that the process was in when portakernel was imported: what variables name relatively is there.

A program may go elsewhere before it makes its first call.
"""

from __future__ import annotations

import os

try:
    START_FOLDER = os.getcwd()
except OSError:  # it was deleted
    START_FOLDER = ""
