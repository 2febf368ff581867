"""The ``PORTAKERNEL_*`` variables as people and programs are told of them: values here, meanings, what is accepted."""

from __future__ import annotations

import os
from typing import Any

from portakernel.cli.output import Page
from portakernel.config import VARIABLES, Config, unknown_variables
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import PortakernelError


def variables_json() -> dict[str, Any]:
    """Every variable with its value here, those that mean nothing, and what is wrong; stable."""
    return {
        "variables": [
            {
                "name": variable.name,
                "value": os.environ.get(variable.name) or None,
                "summary": variable.summary,
                "accepts": variable.accepts,
                "read_by": variable.read_by,
            }
            for variable in VARIABLES
        ],
        "unknown": list(unknown_variables()),
        "error": _error(),
    }


def print_variables(out: Page, told: dict[str, Any]) -> None:
    """Prints what ``variables_json`` told, for people."""
    for variable in told["variables"]:
        if variable["value"] is None:
            out.line(f"{variable['name']} is not set", "faint")
        else:
            out.line(f"{variable['name']}={variable['value']}", "good")
        out.line(variable["summary"], indent=4)
        out.line(f"accepts: {variable['accepts']}", indent=4)
        out.line(f"read by: {variable['read_by']}", indent=4)
    wrong = [*told["unknown"], *([told["error"]] if told["error"] else [])]
    if wrong:
        out.heading("What is wrong")
    for sentence in wrong:
        out.line(sentence, "bad", indent=2)


def _error() -> str | None:
    """What is wrong with a variable's value, or a policy file that one names: what would stop a call."""
    try:
        Dispatcher(config=Config.from_environment())
    except PortakernelError as error:
        return str(error)
    return None
