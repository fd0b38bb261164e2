"""The options and the job specification of a stream, parsed once, then frozen.

The names are Spark's (camelCase). An unknown name is refused with the list of valid ones. Both
sides of a launch parse with this module: Airflow before it starts anything, then the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol import option_parsers as forms
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.dataset import CACHE_BYTES
from airflow_provider_lance.protocol.json_codec import Options
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.option_parsers import option, switch
from airflow_provider_lance.spec.source_options import refuse_misspelt
from airflow_provider_lance.supervision.driver_reports import report_location

__all__ = ["AVAILABLE_NOW", "JobSpec", "SinkOptions", "Source"]

AVAILABLE_NOW = "availableNow"
_INTERVAL = re.compile(r"([0-9]{1,18}) (millisecond|second|minute|hour|day)s?")
_UNIT_SECONDS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}


_bytes = partial(forms.positive, most=2**40)  # 1 TiB


def _trigger(value: Any) -> str:
    if value == AVAILABLE_NOW:
        return AVAILABLE_NOW
    found = _INTERVAL.fullmatch(value) if isinstance(value, str) else None
    if found and int(found[1]) * _UNIT_SECONDS[found[2]] <= forms.MOST_SECONDS:
        return str(value)
    raise ValueError("'availableNow' or an interval such as '10 seconds'")


@dataclass(frozen=True, kw_only=True)
class SinkOptions(Options):
    """The sink's options, by the names that users type.

    - ``uri``, ``queryId``, ``checkpointLocation``: required; both places absolute.
    - ``outputMode``: ``append``, ``complete`` or ``update``.
    - ``mergeKeys``, ``deleteWhen``: for an upsert, the columns that identify a row and a SQL
      condition over the stream's columns under which the row is deleted instead.
    - ``updateAsAppend``: append every changed row of an update instead.
    - ``smallEpochRows``: partitions with at most this many rows (and 2 MiB) are gathered into one
      fragment; rows are counted, not estimated. 0 writes everything on the executors.
    - ``targetRowsPerFragment``: rows after which a new fragment begins.
    - ``watermarkEvery``: epochs between two folds of the watermark.
    - ``autoCompactEvery``: epochs between two compactions by the driver; 0 for none.
    - ``cacheBytes``: the most that Lance's caches hold in the driver; an eighth for manifests and
      file footers, the rest for indices.
    - ``createIfMissing``, ``vectorSizes``: create the dataset with the stream's columns, with list
      columns as vectors of a fixed size.
    - ``invalidText``: ``refuse`` text that is not UTF-8, or ``replace`` its wrong bytes by U+FFFD.
    - ``onCheckpointChange``: ``fail`` or ``newGeneration``.
    - ``onHistoryGap``: ``fail``, ``committed:<epoch>@<version>`` or ``missing:<epoch>@<version>``.
    - ``onRestore``: ``fail`` or ``accept:<first>-<last>``, the epochs that a restored version took
      away and that the stream goes on without.
    - ``storageOptions``: Lance's, secrets included; never shown.
    """

    uri: str = option(forms.location, "", name="uri")
    query_id: str = option(require_query_id, "", name="queryId")
    checkpoint_location: str = option(forms.location, "", name="checkpointLocation")
    output_mode: OutputMode = option(forms.mode, OutputMode.APPEND, name="outputMode")
    merge_keys: tuple[str, ...] = option(forms.names, (), name="mergeKeys")
    delete_when: str | None = option(forms.text, None, name="deleteWhen")
    update_as_append: bool = option(forms.flag, False, name="updateAsAppend")
    small_epoch_rows: int = option(forms.count, 20_000, name="smallEpochRows")
    target_rows_per_fragment: int = option(forms.positive, 1_048_576, name="targetRowsPerFragment")
    watermark_every: int = option(forms.positive, 10, name="watermarkEvery")
    auto_compact_every: int = option(forms.count, 0, name="autoCompactEvery")
    cache_bytes: int = option(_bytes, CACHE_BYTES, name="cacheBytes")
    create_if_missing: bool = option(forms.flag, False, name="createIfMissing")
    vector_sizes: Mapping[str, int] = option(forms.vector_sizes, dict, name="vectorSizes")
    replace_invalid_text: bool = switch("refuse", "replace", name="invalidText")
    new_generation: bool = switch("fail", "newGeneration", name="onCheckpointChange")
    on_restore: OnRestore = option(OnRestore.parse, OnRestore(), name="onRestore", write=str)
    on_history_gap: OnHistoryGap = option(
        OnHistoryGap.parse, OnHistoryGap(), name="onHistoryGap", write=str
    )
    storage_options: Mapping[str, str] = option(
        forms.strings, dict, name="storageOptions", secret=True
    )

    what = "sink options"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse missing and contradicting options; see :meth:`Options.check`."""
        require_query_id(self.query_id)
        for name, value in (("uri", self.uri), ("checkpointLocation", self.checkpoint_location)):
            if not value:
                raise SpecError(f"sink options: {name} is missing")
        update = self.output_mode is OutputMode.UPDATE
        if update and not self.merge_keys and not self.update_as_append:
            raise SpecError(
                "outputMode=update needs one of two things: mergeKeys (the columns that identify a "
                "row; matching rows are replaced, others added), or updateAsAppend=true (every "
                "changed row is appended, earlier ones stay)"
            )
        if self.merge_keys and (not update or self.update_as_append):
            raise SpecError(
                "mergeKeys belongs to outputMode=update without updateAsAppend; got outputMode="
                f"{self.output_mode.value}, updateAsAppend={str(self.update_as_append).lower()}"
            )
        if self.update_as_append and not update:
            raise SpecError(
                "updateAsAppend belongs to outputMode=update; got outputMode="
                f"{self.output_mode.value}"
            )
        if self.delete_when and not self.merge_keys:
            raise SpecError("deleteWhen needs mergeKeys: rows are deleted by their keys")
        checkpoint = self.checkpoint_location
        if forms.contains(self.uri, checkpoint):
            raise SpecError(
                f"checkpointLocation {checkpoint!r} lies in the dataset {self.uri!r}: give Spark's "
                "files a folder of their own"
            )
        for folder in (checkpoint, report_location(checkpoint)):
            if forms.contains(folder, self.uri):
                raise SpecError(
                    f"the dataset {self.uri!r} lies in {folder!r}, where Spark and the driver keep "
                    "files of their own: give it another place than checkpointLocation"
                )

    @property
    def commit_mode(self) -> OutputMode:
        """Return how an epoch is committed; a classic update is an append of delta rows."""
        return OutputMode.APPEND if self.update_as_append else self.output_mode


@dataclass(frozen=True, kw_only=True)
class Source(Options):
    """Any streaming source of Spark: ``format``, its ``options``, and a DDL ``schema``."""

    format: str = option(forms.text, "", name="format")
    options: Mapping[str, str] = option(forms.strings, dict, name="options", secret=True)
    schema: str | None = option(forms.text, None, name="schema")

    what = "source"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse a source without a format, or with a misspelt option."""
        if not self.format:
            raise SpecError("source: format is missing, for example 'parquet', 'kafka' or 'rate'")
        refuse_misspelt(self.format, self.options)

    def to_json(self) -> dict[str, Any]:
        """Return the source as :meth:`parse` reads it, secrets included."""
        return {"schema": None} | super().to_json()


@dataclass(frozen=True, kw_only=True)
class JobSpec(Options):
    """One launch of one streaming query: where rows come from, when, and where they go.

    Rows come from ``source``, with an optional ``sql`` text over a view named ``source``, or from
    ``dataframe``, a user's ``module:function`` that is called with the Spark session and
    ``arguments``. ``launched_by`` names who launched it, for display and for finding it again.
    ``stop_grace`` is how long, in seconds, an epoch may continue after a stop request.
    """

    launch_id: str = option(forms.launch_id, "", name="launchId")
    launched_by: str = option(forms.text, "", name="launchedBy", write=lambda name: name or None)
    sink: SinkOptions = option(SinkOptions.parse, SinkOptions(), name="sink")
    source: Source | None = option(Source.parse, None, name="source")
    sql: str | None = option(forms.text, None, name="sql")
    dataframe: str | None = option(forms.function, None, name="dataframe")
    arguments: Mapping[str, str] = option(forms.strings, dict, name="arguments", secret=True)
    trigger: str = option(_trigger, AVAILABLE_NOW, name="trigger")
    stop_grace: int = option(forms.duration, 60, name="stopGrace")

    what = "job specification"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse a specification that lacks a part or contradicts itself."""
        if not self.sink.query_id:
            raise SpecError("job specification: sink is missing")
        if not self.launch_id:
            raise SpecError("job specification: launchId is missing")
        if (self.source is None) == (self.dataframe is None):
            raise SpecError(
                "job specification: give either source (a Spark streaming format) or dataframe "
                f"('module:function'), not {'both' if self.source else 'neither'}"
            )
        if self.sql and self.dataframe:
            raise SpecError("job specification: sql goes with source; put it into the function")
