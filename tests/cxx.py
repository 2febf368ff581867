"""A C++ compiler: what a machine for `make demo` and `make test` may lack, and Inductor needs for the CPU."""

from __future__ import annotations

import shutil

import pytest

HAS_CXX = any(map(shutil.which, ("g++", "c++", "clang++")))
needs_cxx = pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which Inductor needs for the CPU")
