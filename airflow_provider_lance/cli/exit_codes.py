"""What the exit status says."""

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
    """Something is wrong, or could not be done; it says what."""
    USAGE = 2
    """What was typed cannot be done: a wrong option, an unknown dataset, no ``--yes``."""
    UNKNOWN = 3
    """It could not be told: the store is away, for instance."""

    @classmethod
    def of(cls, error: Exception) -> Exit:
        """Return the status that an error stands for."""
        match error:
            case SpecError() | DatasetNotFoundError():
                return cls.USAGE
            case TransientError():
                return cls.UNKNOWN
            case LanceStreamError():
                return cls.UNHEALTHY
            case _:
                return cls.UNKNOWN
