"""Names of products, as people write them: ``h100``, ``RTX-4090`` and ``GeForce RTX 4090``."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

_IGNORED = re.compile(r"[\s_-]+")


def spelled(name: str) -> str:
    """``name`` without what people write in different ways: case, spaces, dashes and underscores."""
    return _IGNORED.sub("", name.casefold())


def letters(name: str) -> str:
    """What ``name`` begins with, before its first number: archs and products of one kind have that in common."""
    return "".join(itertools.takewhile(str.isalpha, spelled(name)))


# What tools print around a product's name: marks, memory sizes, form factors, and what is said of any GPU.
_PRINTED = re.compile(
    r"\((?:r|tm|c)\)|[®™]"
    r"|\b(?:\d+gi?b|hbm\d\w?|sxm\d?|pcie|nvl|oam|max-q"
    r"|tesla|gpu|graphics|laptop|generation|blackwell|(?:server|workstation)?[ ]edition)\b"
)


def plain(name: str, vendor: str = "") -> str:
    """``name`` spelled without ``vendor`` and what tools print around it: of ``NVIDIA A100-SXM4-80GB`` the a100."""
    kept = _PRINTED.sub(" ", name.casefold().replace("_", " "))
    return spelled(re.sub(rf"\b{re.escape(vendor)}\b", " ", kept) if vendor else kept)


@functools.cache
def spellings(product: str) -> Mapping[str, str]:
    """What ``product`` may be called, as written by its spelling: its whole name, and its last words.

    These not where they are letters or digits alone: a ``Radeon RX 7900 XTX`` is also an RX 7900 XTX and a 7900 XTX,
    but no XTX; an ``RTX PRO 6000`` is no 6000, which others are too.
    """
    words = product.split()
    shorter = (" ".join(words[i:]) for i in range(1, len(words)))
    named = (name for name in shorter if not spelled(name).isalpha() and not spelled(name).isdigit())
    return MappingProxyType({spelled(name): name for name in (product, *named)})


@functools.cache
def _plain_spellings(product: str, vendor: str) -> frozenset[str]:
    return frozenset(plain(name, vendor) for name in spellings(product).values())


def is_called(product: str, name: str, vendor: str = "") -> bool:
    """Whether ``product`` of ``vendor`` may be called ``name``, as people write it or tools print it."""
    return spelled(name) in spellings(product) or plain(name, vendor) in _plain_spellings(product, vendor)


def numbered(number: str, products: Iterable[str]) -> list[str]:
    """The shortest names of the products that people may mean by ``number`` alone, which is none of these."""
    return sorted({min(spellings(product).values(), key=len) for product in products if number in product.split()[-1:]})
