"""Plugin ``cutlass_dsl``: matrix products in CuTe DSL, CUTLASS' language in Python."""
