"""One kernel as a plugin declares it: built and loaded on first use, then found by one look-up and launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import ArgumentValueError
from portakernel.host.locks import make_lock
from portakernel.native.module import Layout, Parameter, load
from portakernel.native.place import EMULATED, PRETENDED, target_of
from portakernel.native.unit import Unit, needs_build
from portakernel.tensors.compilation import compilations


class Kernel:
    """A ``__global__`` function of a unit, on whatever device its first tensor lies.

    ``name`` is needed where the unit has several. ``compiles``: ``"on call"``, or ``"ahead"`` alone.
    ``most_shared_bytes`` of dynamic shared memory are taken by any launch. The first ``pointer`` is a tensor, always.
    """

    def __init__(
        self,
        unit: Unit,
        parameters: Sequence[Parameter],
        *,
        name: str | None = None,
        compiles: Literal["on call", "ahead"] = "on call",
        most_shared_bytes: int = 0,
    ) -> None:
        if name is None and len(unit.names) != 1:
            raise ArgumentValueError(f"{unit} has {len(unit.names)} kernels: give the name of one")
        Layout(parameters)  # says what is no type of a parameter
        if "pointer" not in parameters:
            raise ArgumentValueError(f"{unit}: a kernel without a pointer lies on no device")
        self.unit, self.name = unit, name or unit.names[0]
        self.parameters, self.compiles, self.most_shared_bytes = tuple(parameters), compiles, most_shared_bytes
        self._first = self.parameters.index("pointer")
        self._launches: dict[int, Callable[..., None]] = {}
        self._declined: dict[int, Rejection] = {}
        self._lock = make_lock()

    def __call__(self, grid: Sequence[int], block: Sequence[int], shared_bytes: int, *args: Any) -> None:
        """Launches it, as ``Function`` does.

        On meta tensors, inside ``compiling(target)``, it is compiled alone; on CPU tensors, inside
        ``portakernel.emulation.emulating(target)``, emulated.

        Raises:
            CannotRun: it cannot be built or loaded here; nothing was launched.
            CaptureError: it is not built, and a stream is being captured.
            ArgumentValueError: the tensors are on no GPU.
        """
        tensor = args[self._first]
        launch = self._launches.get(tensor.get_device())
        if launch is None:
            if tensor.is_meta and (pretended := PRETENDED.get()) is not None:
                pretended[1](self.unit, self.name, self.most_shared_bytes)
                return
            if tensor.device.type == "cpu" and (emulated := EMULATED.get()) is not None:
                emulated[1](self, grid, block, shared_bytes, args)
                return
            launch = self._prepared(tensor)
        launch(grid, block, shared_bytes, *args)

    def _prepared(self, tensor: Any) -> Callable[..., None]:
        target, index = target_of(tensor), tensor.get_device()
        with self._lock:
            if index in self._launches:  # another thread was here
                return self._launches[index]
            if index in self._declined:
                raise CannotRun(self._declined[index])
            compilations().announce(f"{self.name} of {self.unit.source.file} for {target}")
            try:
                with compilations().timed("native", self.name):
                    code = self.unit.kept(target) if self.compiles == "ahead" else self.unit.build(target)
                if code is None:
                    raise CannotRun(needs_build(self.unit, target))
                function = load(code, index).function(
                    self.name, self.parameters, most_shared_bytes=self.most_shared_bytes
                )
            except CannotRun as declared:
                # what our source's compilation came to does not change; a compiler may be installed, a build made
                if declared.rejection.code in (ReasonCode.CANNOT_RUN, ReasonCode.SHARED_MEMORY):
                    self._declined[index] = declared.rejection
                raise
            self._launches[index] = function.launch
            return function.launch
