"""A second, plain implementation of AMD's instructions: the ISA documents' pseudocode, read and evaluated.

It shares no code with ``portakernel.emulation``: numbers are Python's integers (``floats``), pseudocode is parsed
(``syntax``) and evaluated lane by lane (``evaluate``) on a wave of plain lists (``wave``). ``cases`` draws instructions
and operands, ``texts`` writes them as assembly, ``bench`` runs them on the engine and compares every register.
"""
