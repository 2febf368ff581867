"""Every ``PORTAKERNEL_*`` environment variable, in one table; none is read on a call.

Most are read when a dispatcher is made; the table says which are read later, as those of caches are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from portakernel.claims.capability import Property
from portakernel.errors import ConfigError, nearest
from portakernel.host.home import expanded
from portakernel.host.output_file import obstacle
from portakernel.host.start_folder import START_FOLDER
from portakernel.words.client_names import CLIENTS, WITHOUT_ENTRY_POINT
from portakernel.words.graph_forms import GRAPH_FORMS

T = TypeVar("T")

PREFIX = "PORTAKERNEL_"
# Of compiled kernels: a CUTLASS kernel takes one to three MiB, one of the HIP plugin's 20 KiB.
_CACHE_MIB = 4096
# More digits than this no number of MiB has; Python refuses to read some thousands.
_DIGITS = 18
_NAMES = "names of kernels or plugins, comma-separated"
_DISPATCH = "dispatch, when portakernel is first used"
_PATIENCE_S = 60
_HOME = "~ is the home directory"
# How times were taken (``portakernel.tuning.key.Regime``); the first is the default.
_REGIMES = ("graph/cold", "graph/warm", "eager/cold", "eager/warm", "off")


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: what it does, what it accepts (``choices``, where its values can be listed), and who reads it."""

    name: str
    summary: str
    accepts: str
    read_by: str = _DISPATCH
    choices: tuple[str, ...] = ()


VARIABLES: tuple[Variable, ...] = (
    Variable("PORTAKERNEL_USE", "Kernels or plugins to use strictly: theirs, or an error.", _NAMES),
    Variable("PORTAKERNEL_PREFER", "Kernels or plugins to try first, best first.", _NAMES),
    Variable("PORTAKERNEL_DENY", "Kernels or plugins never to use.", _NAMES),
    Variable(
        "PORTAKERNEL_REQUIRE",
        "Properties that every chosen kernel must declare.",
        f"some of {', '.join(get_args(Property))}, comma-separated",
        choices=get_args(Property),
    ),
    Variable(
        "PORTAKERNEL_REFERENCE",
        "What the references may do on accelerators.",
        "allow, warn or forbid",
        choices=("allow", "warn", "forbid"),
    ),
    Variable(
        "PORTAKERNEL_COMPILED",
        "The form that kernels first have in graphs of torch.compile, where they have it.",
        "inline, kernel or call",
        choices=GRAPH_FORMS,
    ),
    Variable(
        "PORTAKERNEL_PLUGINS",
        "The plugins that may serve; no other is imported, and the references remain.",
        "names of plugins, comma-separated",
    ),
    Variable(
        "PORTAKERNEL_POLICY",
        "Policy files, with wishes for all or single ops and targets; a later one goes first.",
        f"paths, with {os.pathsep!r} between them; {_HOME}",
    ),
    Variable(
        "PORTAKERNEL_DISABLE",
        "Plugins, backends or kernels to switch off; they are not imported.",
        "names of plugins, backends or kernels, comma-separated",
    ),
    Variable(
        "PORTAKERNEL_CHECKS",
        "1: calls check the indices and offsets in tensors first, and wait for the device.",
        "0 or 1",
        choices=("0", "1"),
    ),
    Variable(
        "PORTAKERNEL_LOG",
        "What to tell on stderr; summary: at exit, what served how many calls.",
        "summary",
        "the process, when portakernel is first used",
        ("summary",),
    ),
    Variable(
        "PORTAKERNEL_CACHE_DIR",
        "The folder that keeps kernels compiled from C++.",
        f"a path; {_HOME}",
        "the cache of compiled kernels, whenever it is opened",
    ),
    Variable(
        "PORTAKERNEL_CACHE_MIB",
        "How much that folder keeps, in MiB; what was used longest ago goes first.",
        f"a whole number, 0 or more [default: {_CACHE_MIB}]",
        "the cache of compiled kernels, whenever it is opened",
    ),
    Variable(
        "PORTAKERNEL_PLAN",
        "A plan to follow: kernels for kinds of calls, each with its source (docs/plans.md).",
        f"a path; {_HOME}",
    ),
    Variable(
        "PORTAKERNEL_TUNING",
        "Whose times decide, of what was measured (docs/tuning.md); off: nobody's.",
        f"{', '.join(_REGIMES)} [default: {_REGIMES[0]}]",
        choices=_REGIMES,
    ),
    Variable(
        "PORTAKERNEL_RECORD",
        "A recording to add to at exit: which kinds of calls were made, and how often.",
        f"a path, where the process was started if it is relative; {_HOME}",
        "each op, when it is first used",
    ),
    Variable(
        "PORTAKERNEL_TUNING_DIR",
        "The folder that keeps what `portakernel tune` measured.",
        f"a path; {_HOME}",
        "what reads or writes measurements, whenever it does",
    ),
    Variable(
        "PORTAKERNEL_PATIENCE_S",
        "How long a plugin's import, hook or probe may take, in seconds; 0: without end.",
        f"a whole number, 0 or more [default: {_PATIENCE_S}]",
        _DISPATCH,
    ),
    Variable(
        "PORTAKERNEL_CLIENTS",
        "Engines to serve, with some ops or all (docs/clients.md); unset: none is changed.",
        f"client or client:op,op; several with ';' between them. Clients: {', '.join(CLIENTS)}",
        "dispatch, when portakernel is first used; loaders of engines' plugins",
    ),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


@dataclass(frozen=True, slots=True)
class Config:
    """The variables' values; empty where not set. ``strangers``: a sentence for each variable that means nothing."""

    use: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    reference: str | None = None
    compiled: str | None = None
    plugins: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    checks: bool = False
    log: str | None = None
    cache_dir: str | None = None
    cache_mib: int = _CACHE_MIB
    plan: str | None = None
    tuning: str = _REGIMES[0]
    record: str | None = None
    tuning_dir: str | None = None
    patience_s: int = _PATIENCE_S
    # Each client that is to be served, with the ops that serve its layers.
    clients: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    strangers: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The configuration that the environment gives.

        Raises:
            ConfigError: variables have values that are not accepted; a line for each.
        """
        values = os.environ if environment is None else environment

        def text(key: str) -> str:
            return values.get(PREFIX + key, "").strip()

        def several(key: str, separator: str = ",") -> tuple[str, ...]:
            return tuple(part.strip() for part in text(key).split(separator) if part.strip())

        faults = list[str]()

        def checked(read: Callable[..., T], *given: Any) -> T | None:
            try:
                return read(*given)
            except ConfigError as error:
                faults.append(str(error))
                return None

        require = checked(_chosen, "REQUIRE", several("REQUIRE"))
        reference = checked(_chosen, "REFERENCE", tuple(filter(None, [text("REFERENCE")])))
        compiled = checked(_chosen, "COMPILED", tuple(filter(None, [text("COMPILED")])))
        plugins = checked(_plugins, text("PLUGINS"), several("PLUGINS"))
        policy = checked(_paths, text("POLICY"), several("POLICY", os.pathsep))
        checks = checked(_chosen, "CHECKS", tuple(filter(None, [text("CHECKS")])))
        log = checked(_chosen, "LOG", tuple(filter(None, [text("LOG")])))
        tuning = checked(_chosen, "TUNING", tuple(filter(None, [text("TUNING")])))
        cache_mib = checked(_whole, "CACHE_MIB", text("CACHE_MIB"), _CACHE_MIB)
        record = checked(_to_write, "RECORD", text("RECORD"))
        patience_s = checked(_whole, "PATIENCE_S", text("PATIENCE_S"), _PATIENCE_S)
        clients = checked(_clients, "CLIENTS", text("CLIENTS"))
        if faults:
            raise ConfigError("\n".join(faults))
        return cls(
            use=several("USE"),
            prefer=several("PREFER"),
            deny=several("DENY"),
            require=require or (),
            reference=next(iter(reference or ()), None),
            compiled=next(iter(compiled or ()), None),
            plugins=plugins or (),
            disable=several("DISABLE"),
            policy=policy or (),
            checks=checks == ("1",),
            log=next(iter(log or ()), None),
            cache_dir=expanded(text("CACHE_DIR")) or None,
            cache_mib=cache_mib or 0,
            plan=expanded(text("PLAN")) or None,
            tuning=next(iter(tuning or ()), _REGIMES[0]),
            record=record,
            tuning_dir=expanded(text("TUNING_DIR")) or None,
            patience_s=patience_s or 0,
            clients=clients or {},
            strangers=unknown_variables(values),
        )


def _paths(text: str, given: Iterable[str]) -> tuple[str, ...]:
    """Policy files; variables that were not set, joined, are no wish to have none."""
    paths = tuple(map(expanded, given))
    if text and not paths:
        raise ConfigError(f"{PREFIX}POLICY is {text!r}, which names no file; give paths, or leave it unset")
    return paths


def _to_write(key: str, text: str) -> str | None:
    """A file that can be written; None where none is named."""
    if not text:
        return None
    path = os.path.realpath(os.path.join(START_FOLDER, expanded(text)))
    if why := obstacle(Path(path)):
        raise ConfigError(f"{PREFIX + key} is {text!r}, which {why}; or leave it unset")
    return path


def _chosen(key: str, given: Iterable[str]) -> tuple[str, ...]:
    """What is given, each one of the variable's choices."""
    choices, values = _BY_NAME[PREFIX + key].choices, tuple(given)
    wrong: dict[str, list[str]] = {}
    for value in values:
        if value not in choices:
            wrong.setdefault(nearest(value, choices), []).append(repr(value))
    if wrong:
        lines = (f"{PREFIX + key} is {' and '.join(alike)}; {offer}" for offer, alike in wrong.items())
        raise ConfigError("\n".join(lines))
    return values


def _plugins(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The plugins that may serve; a list that names none would let everybody serve, or nobody."""
    if text and not names:
        raise ConfigError(f"PORTAKERNEL_PLUGINS is {text!r}, which names no plugin; name some, or unset it")
    for name in names:
        if "." in name:
            plugin = name.partition(".")[0]
            raise ConfigError(f"PORTAKERNEL_PLUGINS names the kernel {name!r}; it takes plugins, such as {plugin!r}")
    return names


def _clients(key: str, text: str) -> dict[str, tuple[str, ...]]:
    """The clients that are named, each with its ops: those behind the colon, or all that serve it."""
    asked = dict[str, tuple[str, ...]]()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        client, colon, words = (piece.strip() for piece in part.partition(":"))
        known = CLIENTS.get(client)
        if known is None:
            instead = WITHOUT_ENTRY_POINT.get(client.lower()) or _closest(client, CLIENTS)
            raise ConfigError(f"{PREFIX + key} names the client {client!r}; {instead}")
        ops = tuple(word.strip() for word in words.split(",")) if words else ()
        if colon and not ops:
            raise ConfigError(
                f"{PREFIX + key} is {text!r}: {client!r} has a colon and no op behind it; name some, such"
                f" as {client}:{known[0]}, or leave the colon out, which serves all"
            )
        for op in ops:
            if not op:
                raise ConfigError(
                    f"{PREFIX + key} is {text!r}: {client!r} has a comma without an op on each side; list its ops with"
                    f" one comma between two, such as {client}:{','.join(known[:2])}"
                )
            if op not in known:
                raise ConfigError(f"{PREFIX + key}: {client} has no layer that {op!r} serves; {_closest(op, known)}")
        if client in asked:
            raise ConfigError(f"{PREFIX + key} names {client!r} twice; list its ops once, with commas between them")
        asked[client] = ops or known
    if text and not asked:
        raise ConfigError(f"{PREFIX + key} is {text!r}, which names no client; name some, or leave it unset")
    return asked


def _closest(name: str, known: Iterable[str]) -> str:
    """As ``nearest``, which leaves out what differs in case alone: that is what was meant."""
    return f"did you mean {name.lower()!r}?" if name.lower() in known else nearest(name, known)


def _whole(key: str, text: str, default: int) -> int:
    if not text:
        return default
    if not text.isdecimal() or len(text) > _DIGITS:
        shown = text if len(text) <= 2 * _DIGITS else f"{text[:_DIGITS]}..."
        raise ConfigError(f"{PREFIX + key} is {shown!r}; give a whole number, 0 or more")
    return int(text)


def unknown_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A sentence for each ``PORTAKERNEL_*`` variable that is set and means nothing."""
    values = os.environ if environment is None else environment
    strangers = sorted(name for name in values if name.startswith(PREFIX) and name not in _BY_NAME)
    return tuple(f"{name} is set, but no such variable exists; {nearest(name, _BY_NAME)}" for name in strangers)
