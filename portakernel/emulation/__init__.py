"""AMD's machine code on the CPU, instruction by instruction: what a kernel computes, touches and executes.

``emulate`` (``launch``) loads a code object (``code_object``), decodes its .text once (``decoder``, ``program``) into
records (``record``) that the engine executes (``engine/``, compiled by ``build``), gives it the arguments' memory
(``memory``) and reads back findings (``finding``) and counts (``counts``). ``lines`` knows source lines, and
``operand_text`` how findings name instructions and registers. Of an instruction ``encodings`` knows name and fields,
``word`` reads them, ``alu_formats`` and ``memory_formats`` know which operands they name, and ``waits`` which counter
its result is waited for by.

``emulating`` (``session``) runs kernels by their own Python entries: what they launch is compiled for the target
(``triton_kernels``, ``native_kernels``) and emulated on the tensors' memory.

The engine, one file per family of instructions, each of which registers handlers by the documents' names:

================================  ==============================================================================
``abi.h``                         what Python and the engine hand each other (mirrored in ``abi``)
``wave.h``, ``run.cpp``           state of waves and workgroups; scheduling, counters
``findings.cpp``                  what a wave reports
``doubts.h``, ``doubts.cpp``      lane masks, EXEC too, that depend on what a conflicting load gave
``operands.h``                    operands of vector instructions, as arrays of lanes
``sources.cpp``, ``results.cpp``  their fetch: constants, neg, abs, op_sel, DPP, SDWA; their write: clamp, omod, MODE
``waits.h``, ``waits.cpp``        what loads bring, and whether it was waited for before it is used
``group_touches.h``               which workgroups touched memory: what one writes, no other may touch
``registry.h``, ``.cpp``          the table of handlers; a new file is named there once
``scalar*.cpp``, ``control.cpp``  scalar ALU (lane masks: ``scalar_mask.cpp``); branches, calls, barriers, MODE
``vector_*.cpp``                  vector ALU: lists of ``VectorOp`` (name, types, a function of lanes)
``lanes.cpp``                     between lanes: readlane, permlane, swizzle, ds_permute
``memory*.cpp``, ``lds*.cpp``     checked memory: regions, LDS, private; loads, stores, atomics
``matrix*.cpp``                   MFMA and WMMA; their products, and what is assumed of roundings (``matrix.h``)
``small_float.h``                 floats of 8, 6 and 4 bits, of each architecture's formats
================================  ==============================================================================

A vector instruction is added as one line of a ``VectorOp`` list: operands arrive as arrays of lanes with modifiers
applied, and the result is written under EXEC. ``tests/single_instruction.py`` runs one assembled instruction on given
registers.
"""

from portakernel.emulation.errors import EmulationError
from portakernel.emulation.finding import Finding, Kind
from portakernel.emulation.launch import Run, emulate
from portakernel.emulation.session import FindingsError, Launched, emulating

__all__ = ["EmulationError", "Finding", "FindingsError", "Kind", "Launched", "Run", "emulate", "emulating"]
