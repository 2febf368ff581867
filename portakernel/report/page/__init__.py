"""A report as one HTML page: text, style and pictures inside, nothing to load and nothing that runs.

The template is ``report.html``, whose macros draw in ``plots.html``; what strangers wrote (names of files, of plugins,
of devices, reasons) is escaped by Jinja wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from portakernel.errors import ArgumentValueError
from portakernel.report.content import Report, Workload
from portakernel.text.printable import printable

# Who has chosen: in the order of the legend, with the letter that stands in the bar, and what it means.
SOURCES: Mapping[str, tuple[str, str]] = {
    "call": ("C", "the call names its kernel"),
    "policy": ("W", "a policy"),
    "plan": ("P", "the plan"),
    "measured": ("M", "a measurement"),
    "priority": ("p", "priorities"),
    "none": ("!", "no kernel serves"),
}
# As many of a bar's names are shown; the others are one.
_MOST_BARS = 12


def check_jinja() -> None:
    """Nothing, where Jinja can be imported.

    Raises:
        ArgumentValueError: it is not installed; says how to.
    """
    try:
        import jinja2  # noqa: F401 - whether it can be
    except ImportError as error:
        text = f"report: the page is made with Jinja, which cannot be imported ({error})"
        raise ArgumentValueError(f"{text}; pip install 'portakernel[report]', or --json, which needs none") from error


def page(report: Report) -> str:
    """The page.

    Raises:
        ArgumentValueError: Jinja is not installed.
    """
    check_jinja()
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "percent": _percent, "short": _short, "breakable": _breakable}
    return environment.get_template("report.html").render(
        report=report,
        style=Markup(_file("report.css")),
        sources=SOURCES,
        kernels=_bars(report.workload),
        weights=_weights(report),
    )


def _file(name: str) -> str:
    return files("portakernel.report.page").joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """What is put into the page: texts with what nobody would see, or what reorders, as an escape."""
    return printable(value) if type(value) is str else value


def _bars(workload: Workload | None) -> list[tuple[str, int]]:
    """Kernels with their calls, the most first, as many as are drawn; those that are left as one."""
    if workload is None:
        return []
    every = list(workload.by_kernel().items())
    left = sum(calls for _, calls in every[_MOST_BARS:])
    more = [(f"{len(every) - _MOST_BARS} other kernels", left)] if left else []
    return [(name or "no kernel", calls) for name, calls in every[:_MOST_BARS]] + more


def _weights(report: Report) -> float:
    """The greatest weight of what would help, against which bars are drawn; 1 where none has any."""
    return max((one.weight for one in report.help if one.weight), default=1.0)


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}\N{NARROW NO-BREAK SPACE}%"


def _breakable(name: str) -> Any:
    """A kernel's name, with the places where a narrow column may break it."""
    from markupsafe import Markup, escape

    return Markup(str(escape(printable(name))).replace(".", ".<wbr>").replace("_", "_<wbr>"))


def _short(text: str, most: int = 38) -> str:
    """A name that fits beside its number on a phone."""
    shown = printable(text).replace("\n", " ")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
