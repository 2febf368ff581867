"""Plugin ``quack``: the memory-bound kernels of QuACK (Dao AI Lab), in CuTe DSL."""
