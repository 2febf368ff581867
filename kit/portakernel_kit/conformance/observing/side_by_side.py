"""Several processes' events as one, each process followed in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def side_by_side(followed: Sequence[Iterator[T]], stopped: threading.Event) -> Generator[T, None, None]:
    """The items of all, as they come; what one of them raises is raised here.

    When all are at their end, one has raised, or nobody listens any more, ``stopped`` is set, at which each of them has
    to end, and they are waited for: the interpreter's end would wait for processes that go on.
    """
    found: queue.Queue[tuple[T] | BaseException | None] = queue.Queue()

    def follow(one: Iterator[T]) -> None:
        try:
            for item in one:
                found.put((item,))
        except BaseException as error:  # noqa: BLE001 - raised again where it is read
            found.put(error)
        finally:
            found.put(None)

    threads = [threading.Thread(target=follow, args=(one,), daemon=True) for one in followed]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            item = found.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item[0]
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
