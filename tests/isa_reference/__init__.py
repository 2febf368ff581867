"""A second, plain implementation of AMD's instructions: the ISA documents' pseudocode, read and evaluated.

It shares no code with ``portakernel.emulation``: numbers are Python's integers (``floats``), pseudocode is parsed
(``syntax``) and evaluated lane by lane (``evaluate``, ``execute``) on a wave of plain arrays (``state``). ``documents``
reads the instructions and their pseudocode, ``cases`` draws operands and modifiers and writes them as assembly,
``bench`` runs them on the engine and compares every register (``differential``, ``mutants``).
"""
