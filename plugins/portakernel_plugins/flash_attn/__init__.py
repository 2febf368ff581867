"""Plugin ``flash_attn``: FlashAttention-4 (Dao AI Lab), in CuTe DSL."""
