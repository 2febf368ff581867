"""CUDA and HIP C++: compilers, caches of machine code, launches; plugins import ``portakernel.authoring.native``."""
