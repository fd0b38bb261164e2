"""The meaning of the exit status."""

from __future__ import annotations

from enum import IntEnum

from airflow_provider_lance.exceptions import (
    DatasetNotFoundError,
    LanceStreamError,
    SpecError,
    TransientError,
)

__all__ = ["Exit"]


class Exit(IntEnum):
    """The exit status of every command."""

    HEALTHY = 0
    """Healthy, or done."""
    UNHEALTHY = 1
    """Something is wrong, or could not be done; the output says what."""
    USAGE = 2
    """The command as typed cannot be run: a wrong option, an unknown dataset, no ``--yes``."""
    UNKNOWN = 3
    """The answer is unknown: the store is unreachable, for instance."""

    @classmethod
    def of(cls, error: Exception) -> Exit:
        """Return the exit status for an error."""
        match error:
            case SpecError() | DatasetNotFoundError():
                return cls.USAGE
            case TransientError():
                return cls.UNKNOWN
            case LanceStreamError():
                return cls.UNHEALTHY
            case _:
                return cls.UNKNOWN
