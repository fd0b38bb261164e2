"""The errors that pylance raises, and which of this package's errors they mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_lance.exceptions import DatasetNotFoundError, StorageUnavailableError
from airflow_provider_lance.protocol.store_answers import answer_of, raw_text, short_answer

__all__ = [
    "LANCE_ERRORS",
    "create_error",
    "is_conflict",
    "is_missing",
    "is_panic",
    "named_panics",
    "read_error",
    "reading",
    "write_error",
]

LANCE_ERRORS = (OSError, ValueError, RuntimeError)
"""What pylance raises when a store fails: its file sessions and index statistics raise
RuntimeError, everything else OSError or ValueError (14.0.2).
"""


def is_panic(error: BaseException) -> bool:
    """Return whether native code panicked: a ``BaseException`` whose class cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def named_panics(uri: str) -> Iterator[None]:
    """Turn a panic, which ``except Exception`` does not catch, into one of this package's errors.

    :raises StorageUnavailableError: Lance panicked. Every other error passes.
    """
    try:
        yield
    except BaseException as error:
        if is_panic(error):
            raise StorageUnavailableError(
                f"Lance panicked on {uri}: {short_answer(error)}. That is a defect in Lance, or a "
                "damaged file; the standard error of this process names the place"
            ) from error
        raise


def is_missing(error: BaseException) -> bool:
    """Return whether an error means that a dataset, a version or a file does not exist."""
    # Only the text tells "absent" from "unreachable"; the second form is a dropped live handle's.
    text = str(error)
    return "was not found" in text or ("Not found:" in text and "_versions" in text)


def is_conflict(error: BaseException) -> bool:
    """Return whether an error of pylance's own commits means that another commit landed first.

    Compaction and index builds then raise a plain OSError (seen on pylance 14.0.2).
    """
    text = str(error).lower()
    return "commit conflict" in text or "incompatible transaction" in text


def read_error(uri: str, error: BaseException) -> DatasetNotFoundError | StorageUnavailableError:
    """Return the meaning of pylance's read error: a missing dataset, or a store that fails."""
    if is_missing(error):
        return DatasetNotFoundError(
            f"no Lance dataset at {uri}: check the URI, or create it first (a sink with "
            f"createIfMissing=true does). Lance said: {short_answer(error)}"
        )
    answer = answer_of(error)
    said, raw = f"cannot read {uri}: {answer.sentence}", raw_text(error)
    if answer.no_bucket:
        return DatasetNotFoundError(said, detail=raw)
    return StorageUnavailableError(said, detail=raw, denied=answer.denied)


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn what pylance raises while it reads, panics included, into one of this package's errors.

    :raises DatasetNotFoundError, StorageUnavailableError: see :func:`read_error`.
    """
    try:
        with named_panics(uri):
            yield
    except LANCE_ERRORS as error:
        raise read_error(uri, error) from error


def create_error(uri: str, error: BaseException) -> StorageUnavailableError:
    """Return the meaning of pylance's error while a dataset is created."""
    answer = answer_of(error)
    said = f"cannot create {uri}: {answer.sentence}"
    return StorageUnavailableError(said, detail=raw_text(error), denied=answer.denied)


def write_error(uri: str, error: BaseException) -> StorageUnavailableError:
    """Return the meaning of pylance's error while rows are written, before any commit."""
    answer = answer_of(error)
    why = f"Lance panicked: {answer.said}" if is_panic(error) else answer.sentence
    return StorageUnavailableError(
        f"cannot write rows to {uri}, and nothing of them was committed: {why}",
        detail=raw_text(error),
        denied=answer.denied,
    )
