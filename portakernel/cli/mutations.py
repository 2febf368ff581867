"""``portakernel lint --mutate``: asks who notices a manifest that was changed, shows and writes what comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from portakernel.bench.circumstances import circumstances
from portakernel.bench.report import new_file, write_whole
from portakernel.cli.mutation_report import print_mutated, print_summary
from portakernel.cli.output import page, print_json
from portakernel.cli.progress import progress
from portakernel.cli.required_keys import Kind, RequiredKeys
from portakernel.conformance.mutate import mutate
from portakernel.conformance.mutation import Judged, Listed, Mutated, counts
from portakernel.conformance.observation import Finished
from portakernel.conformance.runner import fresh_seed
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.explaining import first_device
from portakernel.errors import ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device


def run_mutations(
    dispatcher: Dispatcher,
    kernels: Sequence[Kernel],
    plugin: str | None,
    where: Device | None,
    seed: int | None,
    output: Path | None,
    patience_s: float,
    *,
    shows: bool,
    strict: bool,
) -> int:
    """The exit status of a run over these kernels; of ``plugin``, where one is asked for whole, all manifests.

    Raises:
        ArgumentValueError: none of the kernels has a manifest.
    """
    described = [kernel for kernel in kernels if kernel.plugin in dispatcher.registry.manager.plugins]
    if not described:
        asked = ", ".join(dict.fromkeys(kernel.plugin for kernel in kernels)) or plugin
        text = "has no manifest to change: what it claims follows from the ops' contracts"
        raise ArgumentValueError(f"{asked} {text}; name a plugin that has a plugin.yaml: `portakernel list`")
    run = _Run(dispatcher, where, fresh_seed() if seed is None else seed, output, shows=shows)
    with suppress(KeyboardInterrupt):
        run.over(described, plugin, where, patience_s)
    return run.end(strict=strict)


class _Run:
    """A run of the command: asks, shows and writes what comes."""

    def __init__(self, dispatcher: Dispatcher, where: Device | None, seed: int, output: Path | None, *, shows: bool):
        self.dispatcher, self.seed, self.shows, self.out = dispatcher, seed, shows, page()
        self.found: list[Mutated] = []
        self.interrupted = True  # until the last mutation is done
        device = where if where is not None else first_device(dispatcher.registry)
        self.circumstances = circumstances(dispatcher.registry, device)
        date = self.circumstances["date"]
        self.path = new_file(output, device.name, date, "mutations") if output is not None else None
        self._write()

    def over(self, kernels: Sequence[Kernel], plugin: str | None, where: Device | None, patience_s: float) -> None:
        """First the manifests' keys, of which nothing runs, then each kernel's claims; with a progress bar."""
        total = 0
        with progress("mutating", total) as tell:

            def take(known: Mutated, event: object) -> None:
                nonlocal total
                if not self.found or self.found[-1] is not known:
                    self.found.append(known)
                if isinstance(event, Listed):
                    total += len(event.mutations)
                    tell(total=total, description=known.subject)
                elif isinstance(event, Judged):
                    tell(advance=1)
                elif isinstance(event, Finished):
                    self._write()
                    if self.shows:
                        print_mutated(self.out, known)

            for keys in self._manifests(kernels, plugin):
                for known, event in _removed_keys(keys, None if plugin is not None else kernels):
                    take(known, event)
            for known, event in mutate(self.dispatcher, kernels, seed=self.seed, device=where, patience_s=patience_s):
                take(known, event)
        self.interrupted = False

    def _manifests(self, kernels: Sequence[Kernel], plugin: str | None) -> Iterator[RequiredKeys]:
        """The plugin.yaml of each kernel and, of a package that is asked for whole, its backend.yaml."""
        manager, spaces = self.dispatcher.registry.manager, self.dispatcher.registry.spaces
        for name in dict.fromkeys(kernel.plugin for kernel in kernels):
            kinds: tuple[Kind, ...] = ("plugin", "backend") if plugin is not None else ("plugin",)
            for kind in kinds:
                of: Mapping[str, Any] = manager.plugins if kind == "plugin" else manager.backends
                package = of[name][0] if name in of else None
                if package is not None and package.folder is not None:
                    yield RequiredKeys(package, kind, package.folder / f"{kind}.yaml", spaces)

    def end(self, *, strict: bool) -> int:
        """Prints what comes last; the exit status."""
        self._write()
        if not self.shows:
            print_json({**self._to_json(), "file": str(self.path) if self.path is not None else None})
        else:
            for known in self.found:
                if known.left:
                    print_mutated(self.out, known)
            print_summary(self.out, self.found, self.seed, interrupted=self.interrupted)
            if self.path is not None:
                self.out.line(f"written to {self.path}")
        if self.interrupted:
            return 130
        summary = self._counts()
        bad = summary["unnoticed"] or (strict and summary["would_have_worked"])
        return 0 if summary["noticed"] and not bad else 1

    def _counts(self) -> dict[str, int]:
        return counts(judged for known in self.found for judged in known.judged)

    def _to_json(self) -> dict[str, Any]:
        return {
            "circumstances": self.circumstances,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "summary": self._counts(),
            "subjects": [known.to_json() for known in self.found],
        }

    def _write(self) -> None:
        if self.path is not None:
            write_whole(self._to_json(), self.path)


def _removed_keys(keys: RequiredKeys, kernels: Sequence[Kernel] | None) -> Iterator[tuple[Mutated, object]]:
    """Each required key of a manifest, taken away; of ``kernels`` alone, and those of the whole file, where named."""
    known = Mutated(keys.subject)
    paths = keys.paths() if kernels is None else keys.paths_of(kernels)
    known.listed = tuple(keys.mutation(path) for path in paths)
    yield known, Listed(known.listed)
    for path in paths:
        judged = keys.judge(path)
        known.judged.append(judged)
        yield known, judged
    yield known, Finished()
