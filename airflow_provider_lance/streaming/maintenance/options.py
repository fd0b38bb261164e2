"""What a maintenance run may be told, checked before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.streaming.forms import (
    count,
    flag,
    location,
    option,
    parsed,
    positive,
    strings,
)

__all__ = ["KEEP_SECONDS", "MaintenanceOptions", "MaintenanceSpec", "Step"]

KEEP_SECONDS = 600
"""Versions younger than this are never cleaned up where a stream has written.

Lance passes over cleaned-up versions when it looks for conflicts, barriers too (seen on pylance
14.0.2). A driver therefore reopens a handle after 60 s; ten times that covers one that hung.
"""

_WEEK = 7 * 24 * 3600


class Step(StrEnum):
    """What a run does, in this order."""

    COMPACT = "compact"
    INDEX = "index"
    CLEANUP = "cleanup"


def _steps(value: Any) -> tuple[Step, ...]:
    valid = "a list of 'compact', 'index' and 'cleanup', each at most once"
    if isinstance(value, str) or not isinstance(value, list | tuple) or not value:
        raise ValueError(valid)
    try:
        asked = {Step(each) for each in value}
    except ValueError:
        raise ValueError(valid) from None
    if len(asked) != len(value):
        raise ValueError(valid)
    return tuple(step for step in Step if step in asked)


def _compaction(value: Any) -> Mapping[str, Any]:
    from lance.optimize import CompactionOptions

    valid = set(CompactionOptions.__annotations__)
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of pylance's CompactionOptions")
    if unknown := sorted(set(value) - valid, key=str):
        raise ValueError(
            f"pylance's CompactionOptions; unknown {unknown}, valid names are {sorted(valid)}"
        )
    chosen = {name: each for name, each in value.items() if each is not None}
    for name in chosen.keys() & _NUMBERS:
        try:
            chosen[name] = positive(chosen[name])
        except ValueError as error:
            raise ValueError(f"one whose {name} is {error}") from None
    return chosen


_NUMBERS = {
    "batch_size",
    "binary_copy_read_batch_bytes",
    "io_buffer_size",
    "max_bytes_per_file",
    "max_rows_per_group",
    "max_source_bytes",
    "max_source_fragments",
    "max_source_rows",
    "num_threads",
    "target_rows_per_fragment",
}


@dataclass(frozen=True, kw_only=True)
class MaintenanceOptions:
    """The options, by the names of the job's JSON. Durations are seconds.

    - ``steps``: which of ``compact``, ``index`` and ``cleanup``.
    - ``compaction``: pylance's ``CompactionOptions`` as they are; what they leave out comes from
      the dataset's own ``lance.compaction.*`` settings.
    - ``deadline``: begin nothing new after so long.
    - ``minSmallFragments``, ``minUncoveredRows``, ``minOldVersions``: what makes a step worth it.
    - ``olderThan``, ``retainVersions``, ``deleteRateLimit``: what cleanup removes, and how fast
      in deletions per second.
    - ``deleteUnverified``: remove files that no version names, too, however young.
    - ``dryRun``: say what would be done.
    """

    steps: tuple[Step, ...] = option(_steps, tuple(Step), name="steps")
    compaction: Mapping[str, Any] = option(_compaction, dict, name="compaction")
    deadline: int | None = option(positive, None, name="deadline")
    min_small_fragments: int = option(count, 2, name="minSmallFragments")
    min_uncovered_rows: int = option(count, 1, name="minUncoveredRows")
    min_old_versions: int = option(count, 1, name="minOldVersions")
    older_than: int = option(count, _WEEK, name="olderThan")
    retain_versions: int | None = option(positive, None, name="retainVersions")
    delete_rate_limit: int | None = option(positive, None, name="deleteRateLimit")
    delete_unverified: bool = option(flag, False, name="deleteUnverified")
    dry_run: bool = option(flag, False, name="dryRun")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read options as JSON carries them.

        :raises SpecError: unknown name, wrong form, or two that contradict.
        """
        options = cls(**parsed(cls, given, "maintenance options"))
        for step, names in _BELONG.items():
            set_here = sorted(name for name in names if _says_something(given.get(name)))
            if set_here and step not in options.steps:
                raise SpecError(
                    f"maintenance options: {set_here} belong to the step {step.value!r}, and steps "
                    f"has only {[each.value for each in options.steps]}"
                )
        return options

    def target_rows(self, config: Mapping[str, str]) -> int:
        """Return the rows below which a fragment counts as small.

        :param config: the dataset's, whose ``lance.compaction.*`` settings fill in.
        """
        said = self.compaction.get("target_rows_per_fragment")
        default = config.get("lance.compaction.target_rows_per_fragment", "")
        return int(said or (default if default.isdigit() else 0) or 1024 * 1024)

    def to_json(self) -> dict[str, Any]:
        """Return the options as :meth:`parse` reads them."""
        plain = {item.metadata["name"]: getattr(self, item.name) for item in fields(self)}
        plain["steps"] = [step.value for step in self.steps]
        plain["compaction"] = dict(self.compaction)
        foreign = {
            name for step, names in _BELONG.items() if step not in self.steps for name in names
        }
        return {
            name: value
            for name, value in plain.items()
            if value is not None and name not in foreign
        }


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value != {}


_BELONG = {
    Step.COMPACT: ("compaction", "minSmallFragments"),
    Step.INDEX: ("minUncoveredRows",),
    Step.CLEANUP: (
        "olderThan",
        "retainVersions",
        "deleteRateLimit",
        "deleteUnverified",
        "minOldVersions",
    ),
}


@dataclass(frozen=True, kw_only=True)
class MaintenanceSpec:
    """One run on one dataset, as a Spark job is told of it."""

    uri: str = option(location, "", name="uri")
    storage_options: Mapping[str, str] = option(strings, dict, name="storageOptions", secret=True)
    options: MaintenanceOptions = option(
        MaintenanceOptions.parse, MaintenanceOptions(), name="options"
    )

    @classmethod
    def loads(cls, text: str) -> Self:
        """Read a specification from JSON text.

        :raises SpecError: not JSON, or as :meth:`MaintenanceOptions.parse`.
        """
        try:
            given = json.loads(text)
        except ValueError as error:
            raise SpecError(f"maintenance specification: not JSON ({error})") from None
        spec = cls(**parsed(cls, given, "maintenance specification"))
        if not spec.uri:
            raise SpecError("maintenance specification: uri is missing")
        return spec

    def dumps(self) -> str:
        """Return the specification as JSON text, secrets included: write it to a private file."""
        return json.dumps(
            {
                "uri": self.uri,
                "storageOptions": dict(self.storage_options),
                "options": self.options.to_json(),
            }
        )
