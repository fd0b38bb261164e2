"""The options of a maintenance run, checked before anything is changed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol.consumers import CONSUMER_RETENTION
from airflow_provider_lance.protocol.decoding import Reader, shown, whole_text
from airflow_provider_lance.protocol.json_codec import Options
from airflow_provider_lance.protocol.option_parsers import (
    age,
    count,
    duration,
    flag,
    location,
    option,
    positive,
    strings,
)

__all__ = ["KEEP_SECONDS", "MaintenanceOptions", "MaintenanceSpec", "Step"]

KEEP_SECONDS = 600
"""Versions younger than this are never cleaned up if a stream has written.

Lance ignores cleaned-up versions when it checks for conflicts, barriers included (seen on pylance
14.0.2). A driver therefore reopens a handle after 60 s; ten times that covers a driver that hung.
"""

_WEEK = 7 * 24 * 3600


class Step(StrEnum):
    """The steps of a run, in this order."""

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
    """Read pylance's own options by the types that it declares for them.

    pylance itself checks their values only when there is something to compact, which may be weeks
    later.
    """
    from lance.optimize import CompactionOptions

    forms = get_type_hints(CompactionOptions)
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of pylance's CompactionOptions")
    if unknown := sorted(set(value) - set(forms), key=str):
        raise ValueError(
            f"pylance's CompactionOptions; unknown {shown(unknown, 300)}, valid names are "
            f"{sorted(forms)}"
        )
    chosen = {}
    for name, each in value.items():
        if each is None:
            continue
        try:
            chosen[name] = _special(name, each, forms[name])
        except ValueError as error:
            raise ValueError(f"one whose {name} is {error}") from None
    return chosen


def _special(name: str, value: Any, form: Any) -> Any:
    """Read one of pylance's options, by its declared type ``Optional[…]``."""
    kind = next(each for each in get_args(form) if each is not type(None))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if name == "data_storage_version":
        if not isinstance(value, str) or not _STORAGE_VERSION.fullmatch(value):
            raise ValueError("a version of Lance's files, such as '2.2', 'stable' or 'next'")
        return value
    if get_origin(kind) is list:
        if not isinstance(value, list | tuple):
            raise ValueError("a list of numbers of fragments")
        return [count(each) for each in value]
    readers: dict[Any, Reader] = {int: positive, bool: flag, float: _ratio}
    return readers[kind](value)


def _ratio(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return float(value)


_STORAGE_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}|legacy|stable|next")


@dataclass(frozen=True, kw_only=True)
class MaintenanceOptions(Options):
    """The options, by their names in the job's JSON. Durations are seconds.

    - ``steps``: which of ``compact``, ``index`` and ``cleanup``.
    - ``compaction``: pylance's ``CompactionOptions`` unchanged; what they omit comes from the
      dataset's own ``lance.compaction.*`` settings.
    - ``deadline``: start nothing new after this time.
    - ``minSmallFragments``, ``minUncoveredRows``, ``minOldVersions``: the minimum for which a step
      runs. With ``minOldVersions`` of 0, a cleanup also looks for files that no version references
      where no version is old.
    - ``olderThan``, ``retainVersions``, ``deleteRateLimit``: what cleanup removes, and how fast in
      deletions per second.
    - ``consumerRetention``: for how long after a consumer of the dataset wrote its position cleanup
      keeps what the consumer still needs.
    - ``deleteUnverified``: also remove files that no version references, however young.
    - ``dryRun``: report what would be done.
    """

    steps: tuple[Step, ...] = option(_steps, tuple(Step), name="steps")
    compaction: Mapping[str, Any] = option(_compaction, dict, name="compaction")
    deadline: int | None = option(duration, None, name="deadline")
    min_small_fragments: int = option(count, 2, name="minSmallFragments")
    min_uncovered_rows: int = option(count, 1, name="minUncoveredRows")
    min_old_versions: int = option(count, 1, name="minOldVersions")
    older_than: int = option(age, _WEEK, name="olderThan")
    retain_versions: int | None = option(positive, None, name="retainVersions")
    delete_rate_limit: int | None = option(positive, None, name="deleteRateLimit")
    consumer_retention: int = option(age, CONSUMER_RETENTION, name="consumerRetention")
    delete_unverified: bool = option(flag, False, name="deleteUnverified")
    dry_run: bool = option(flag, False, name="dryRun")

    what = "maintenance options"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse options of steps that are not run; see :meth:`Options.check`."""
        for step, names in _BELONG.items():
            set_here = sorted(name for name in names if _says_something(given.get(name)))
            if set_here and step not in self.steps:
                raise SpecError(
                    f"maintenance options: {set_here} belong to the step {step.value!r}, and steps "
                    f"has only {[each.value for each in self.steps]}"
                )

    def target_rows(self, config: Mapping[str, str]) -> int:
        """Return the rows below which a fragment counts as small.

        :param config: the dataset's, whose ``lance.compaction.*`` settings fill in.
        """
        if said := self.compaction.get("target_rows_per_fragment"):
            return int(said)
        try:
            return whole_text(config.get("lance.compaction.target_rows_per_fragment"), least=1)
        except ValueError:
            return 1024 * 1024  # Lance's own default

    def to_json(self) -> dict[str, Any]:
        """Return the options as :meth:`parse` reads them."""
        foreign = {
            name for step, names in _BELONG.items() if step not in self.steps for name in names
        }
        return {name: each for name, each in super().to_json().items() if name not in foreign}


def _says_something(value: Any) -> bool:
    return value is not None and value is not False and value != {}


_BELONG = {
    Step.COMPACT: ("compaction", "minSmallFragments"),
    Step.INDEX: ("minUncoveredRows",),
    Step.CLEANUP: (
        "olderThan",
        "retainVersions",
        "deleteRateLimit",
        "consumerRetention",
        "deleteUnverified",
        "minOldVersions",
    ),
}


@dataclass(frozen=True, kw_only=True)
class MaintenanceSpec(Options):
    """One run on one dataset, as a Spark job receives it."""

    uri: str = option(location, "", name="uri")
    storage_options: Mapping[str, str] = option(strings, dict, name="storageOptions", secret=True)
    options: MaintenanceOptions = option(
        MaintenanceOptions.parse, MaintenanceOptions(), name="options"
    )

    what = "maintenance specification"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse a specification without a dataset."""
        if not self.uri:
            raise SpecError("maintenance specification: uri is missing")
