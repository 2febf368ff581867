"""``portakernel lint --mutate``: asks who notices a manifest that was changed, shows and writes what comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from portakernel.cli.progress import progress
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError
from portakernel.registry.kernel import Kernel
from portakernel.words.target import Device
from portakernel_kit.cli.lint.mutation_report import print_mutated, print_summary
from portakernel_kit.cli.lint.required_keys import Kind, RequiredKeys
from portakernel_kit.cli.lint.run import Run
from portakernel_kit.conformance.mutation.mutation import Judged, Listed, Mutated, counts
from portakernel_kit.conformance.mutation.processes import mutate
from portakernel_kit.conformance.observing.observation import Finished


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
    run = MutationRun(dispatcher, where, seed, output, shows=shows)
    with suppress(KeyboardInterrupt):
        run.over(described, plugin, patience_s)
    return run.end(strict=strict)


class MutationRun(Run[Mutated]):
    """What was changed, and who noticed it."""

    name = "mutations"

    def over(self, kernels: Sequence[Kernel], plugin: str | None, patience_s: float) -> None:
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
                    self.write()
                    if self.shows:
                        print_mutated(self.out, known)

            for keys in self._manifests(kernels, plugin):
                for known, event in _removed_keys(keys, None if plugin is not None else kernels):
                    take(known, event)
            for known, event in mutate(
                self.dispatcher, kernels, seed=self.seed, device=self.where, patience_s=patience_s
            ):
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

    def _results(self) -> dict[str, Any]:
        return {"summary": self._counts(), "subjects": [known.to_json() for known in self.found]}

    def _print_rest(self) -> None:
        for known in self.found:
            if known.left:
                print_mutated(self.out, known)
        print_summary(self.out, self.found, self.seed, interrupted=self.interrupted)

    def _holds(self, *, strict: bool) -> bool:
        summary = self._counts()
        bad = summary["unnoticed"] or (strict and summary["would_have_worked"])
        return bool(summary["noticed"] and not bad)

    def _counts(self) -> dict[str, int]:
        return counts(judged for known in self.found for judged in known.judged)


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
