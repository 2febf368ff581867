"""Plugin ``flashinfer``: the serving kernels of FlashInfer, in CUDA and CuTe DSL."""
