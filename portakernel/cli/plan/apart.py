"""The dispatcher for commands that make or judge plans: it follows none itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.deciding.dispatcher import Dispatcher


def dispatcher_apart() -> Dispatcher:
    """The process's dispatcher, without the plan that ``PORTAKERNEL_PLAN`` names.

    That one may be refused since a kernel has changed, and is then what the command is to mend.
    """
    os.environ.pop("PORTAKERNEL_PLAN", None)
    from portakernel.runtime import dispatcher

    now = dispatcher()
    now.routes.set(None, now.routes.measured)
    return now
