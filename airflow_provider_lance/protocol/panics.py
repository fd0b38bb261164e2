"""Panics of Lance's native code, which an ``except Exception`` passes over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_lance.exceptions import StorageUnavailableError

__all__ = ["first_line", "is_panic", "named_panics"]


def is_panic(error: BaseException) -> bool:
    """Tell whether native code panicked: a ``BaseException`` whose class cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def named_panics(uri: str) -> Iterator[None]:
    """Turn a panic, which an ``except Exception`` passes over, into an error of the tree.

    :raises StorageUnavailableError: Lance panicked. Every other error passes.
    """
    try:
        yield
    except BaseException as error:
        if is_panic(error):
            raise StorageUnavailableError(
                f"Lance panicked on {uri}: {first_line(error)}. That is a defect in Lance, or a "
                "damaged file; this process's stderr has where it struck"
            ) from error
        raise


def first_line(error: BaseException) -> str:
    """Return what Lance said, without its own source position."""
    # Lance appends ", /home/runner/…rs:644:29", its own source position, which helps nobody here.
    said = (str(error).splitlines() or [""])[0].split(", /home/runner", 1)[0]
    return said or type(error).__name__
