"""The sink's options, as users write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol import option_parsers as forms
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.commit_policy import OnHistoryGap, OnRestore
from airflow_provider_lance.protocol.dataset import CACHE_BYTES
from airflow_provider_lance.protocol.json_codec import Options
from airflow_provider_lance.protocol.model import OutputMode
from airflow_provider_lance.protocol.option_parsers import option, switch
from airflow_provider_lance.protocol.quarantine import NAME as QUARANTINE
from airflow_provider_lance.protocol.sides import uri_beside
from airflow_provider_lance.spec.expectations import Action, Expectation, expectations
from airflow_provider_lance.spec.routes import PLACE, ROUTE, route_template, template_beside
from airflow_provider_lance.supervision.driver_reports import report_location

__all__ = ["SinkOptions"]

_DIVIDING = (
    "expectations",
    "onRefusedRow",
    "mergeKeys",
    "sequenceBy",
    "deleteWhen",
    "truncateWhen",
    "invalidText",
    "routeBy",
    "routeUri",
    "scdType",
    "trackHistoryColumns",
)
"""The names of the options that decide which rows go into a side table; see :attr:`division`."""

_HOUR, _WEEK = 3600, 7 * 24 * 3600

_bytes = partial(forms.positive, most=2**40)  # 1 TiB


@dataclass(frozen=True, kw_only=True)
class SinkOptions(Options):
    """The sink's options, by the names that users type.

    - ``uri``, ``queryId``, ``checkpointLocation``: required; both places absolute.
    - ``outputMode``: ``append``, ``complete`` or ``update``.
    - ``mergeKeys``, ``deleteWhen``: for an upsert, the columns that identify a row and a SQL
      condition over the stream's columns under which the row is deleted instead.
    - ``sequenceBy``: for an upsert, the columns that order the records of a key: the greatest
      counts, whatever the order of arrival.
    - ``tombstoneRetention``: seconds for which a deleted key is remembered, so that a late record
      cannot bring it back.
    - ``truncateWhen``: a SQL condition under which a record deletes all rows up to its sequence.
    - ``ignoreNullUpdates``: a null in a newer record keeps the value that is stored.
    - ``scdType``: 1 for one row for each key, 2 for its versions, each with ``__start_at`` and
      ``__end_at``.
    - ``trackHistoryColumns``: with ``scdType=2``, the columns of which a change begins a version.
    - ``exceptColumns``: columns of the stream that the dataset does not get.
    - ``updateAsAppend``: append every changed row of an update instead.
    - ``smallEpochRows``: partitions with at most this many rows (and 2 MiB) are gathered into one
      fragment; rows are counted, not estimated. 0 writes everything on the executors.
    - ``targetRowsPerFragment``: rows after which a new fragment begins.
    - ``watermarkEvery``: epochs between two folds of the watermark.
    - ``autoCompactEvery``: epochs between two compactions by the driver; by itself without a value,
      and with 0 neither compactions nor removals of old versions.
    - ``keepVersionsFor``: seconds for which the driver keeps old versions.
    - ``refreshIndices``: the driver covers new rows in the dataset's indices, after its epochs.
    - ``cacheBytes``: the most that Lance's caches hold in the driver; an eighth for manifests and
      file footers, the rest for indices.
    - ``createIfMissing``, ``vectorSizes``: create the dataset with the stream's columns, with list
      columns as vectors of a fixed size.
    - ``schemaEvolution``: ``none``, or ``addColumns``: a column that only the stream has is added
      to the dataset, as nullable.
    - ``missingColumns``: ``refuse`` a stream that lacks a column of the dataset, or write ``null``.
    - ``routeBy``: a column of the stream; each of its values has a dataset of its own, and ``uri``
      records what went where.
    - ``routeUri``: where these datasets lie, with ``{route}`` in place of the value.
    - ``maxRoutes``: the most datasets that the stream may write; 1,000 by default.
    - ``changeFeed``: the dataset has stable row ids, which a change feed needs: it is created with
      them, and one without them is refused.
    - ``invalidText``: ``refuse`` text that is not UTF-8, or ``replace`` its wrong bytes by U+FFFD.
    - ``expectations``: SQL conditions over the stream's columns, counted in each epoch's commit,
      and what happens to a row that does not meet one: ``warn``, ``drop``, ``quarantine`` or
      ``fail``.
    - ``onRefusedRow``: what happens to a row that cannot be written: it ends the query (``fail``),
      or goes to the quarantine (``quarantine``).
    - ``quarantineUri``: the quarantine, if it is not beside the dataset.
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
    sequence_by: tuple[str, ...] = option(forms.names, (), name="sequenceBy")
    tombstone_retention: int = option(forms.duration, _WEEK, name="tombstoneRetention")
    truncate_when: str | None = option(forms.text, None, name="truncateWhen")
    ignore_null_updates: bool = option(forms.flag, False, name="ignoreNullUpdates")
    scd_type: int = option(forms.scd_type, 1, name="scdType")
    track_history_columns: tuple[str, ...] = option(forms.names, (), name="trackHistoryColumns")
    except_columns: tuple[str, ...] = option(forms.names, (), name="exceptColumns")
    update_as_append: bool = option(forms.flag, False, name="updateAsAppend")
    small_epoch_rows: int = option(forms.count, 20_000, name="smallEpochRows")
    target_rows_per_fragment: int = option(forms.positive, 1_048_576, name="targetRowsPerFragment")
    watermark_every: int = option(forms.positive, 10, name="watermarkEvery")
    auto_compact_every: int | None = option(forms.count, None, name="autoCompactEvery")
    keep_versions_for: int | None = option(forms.duration, None, name="keepVersionsFor")
    refresh_indices: bool = option(forms.flag, True, name="refreshIndices")
    cache_bytes: int = option(_bytes, CACHE_BYTES, name="cacheBytes")
    create_if_missing: bool = option(forms.flag, False, name="createIfMissing")
    route_by: str | None = option(forms.text, None, name="routeBy")
    route_uri: str | None = option(route_template, None, name="routeUri")
    max_routes: int | None = option(forms.positive, None, name="maxRoutes")
    change_feed: bool = option(forms.flag, False, name="changeFeed")
    vector_sizes: Mapping[str, int] = option(forms.vector_sizes, dict, name="vectorSizes")
    add_columns: bool = switch("none", "addColumns", name="schemaEvolution")
    fill_missing: bool = switch("refuse", "null", name="missingColumns")
    replace_invalid_text: bool = switch("refuse", "replace", name="invalidText")
    expectations: tuple[Expectation, ...] = option(expectations, (), name="expectations")
    keep_refused: bool = switch("fail", "quarantine", name="onRefusedRow")
    quarantine_uri: str | None = option(forms.location, None, name="quarantineUri")
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
        update, effect = self.output_mode is OutputMode.UPDATE, self.output_mode.effect
        if effect.takes_keys and not self.merge_keys and not self.update_as_append:
            raise SpecError(
                "outputMode=update needs one of two things: mergeKeys (the columns that identify a "
                "row; matching rows are replaced, others added), or updateAsAppend=true (every "
                "changed row is appended, earlier ones stay)"
            )
        if self.merge_keys and (not effect.takes_keys or self.update_as_append):
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
        if self.keep_versions_for is not None and self.keep_versions_for < _HOUR:
            raise SpecError(
                f"keepVersionsFor is {self.keep_versions_for} s: give an hour or more, as readers "
                "and a driver that hung may need younger versions"
            )
        if self.keep_versions_for is not None and self.auto_compact_every == 0:
            raise SpecError(
                "keepVersionsFor says what the driver removes, and with autoCompactEvery=0 it "
                "removes nothing: leave one of them out"
            )
        self._check_quarantine()
        self._check_sequence()
        self._check_routes(given)
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

    def _check_routes(self, given: Mapping[str, Any]) -> None:
        if not self.route_by:
            if named := sorted({"routeUri", "maxRoutes"} & given.keys()):
                raise SpecError(f"{named} belong to routeBy, which is missing")
            return
        if self.output_mode.effect.replaces_all:
            raise SpecError(
                "routeBy needs outputMode append or update: an epoch in complete mode replaces all "
                "rows, and a route without rows in it would keep its old ones"
            )
        if self.quarantines:
            raise SpecError(
                "routeBy has no quarantine yet: use the actions warn, drop or fail, and "
                "onRefusedRow=fail"
            )
        if self.add_columns or self.fill_missing:
            raise SpecError(
                "schemaEvolution and missingColumns do not go with routeBy yet: each dataset has a "
                "schema of its own"
            )
        if self.sequence_by or self.except_columns:
            raise SpecError("sequenceBy and exceptColumns do not go with routeBy yet")
        lies = self.route_uri_of(f"{ROUTE}x")
        for place in (self.uri, self.checkpoint_location):
            if forms.contains(place, lies):
                raise SpecError(f"the routes, such as {lies!r}, lie in {place!r}: change routeUri")

    def route_uri_of(self, name: str) -> str:
        """Return where a route's dataset lies, by its name among the side tables."""
        template = self.route_uri or template_beside(self.uri)
        return template.replace(PLACE, name.removeprefix(ROUTE))

    def side_uri(self, name: str) -> str | None:
        """Return where the options put a side table, ``None`` if they do not say."""
        if name == QUARANTINE:
            return self.quarantine_place if self.quarantines else None
        return self.route_uri_of(name) if self.route_by and name.startswith(ROUTE) else None

    def _check_quarantine(self) -> None:
        if self.quarantine_uri and not self.quarantines:
            raise SpecError(
                "quarantineUri needs rows that go there: set onRefusedRow=quarantine, or the "
                "action of an expectation to quarantine"
            )
        if not self.quarantines:
            return
        if self.output_mode.effect.replaces_all:
            raise SpecError(
                "outputMode=complete computes every row again in each epoch, so each epoch would "
                "quarantine the same rows again: use the actions warn, drop or fail, and "
                "onRefusedRow=fail"
            )
        for other in (self.uri, self.checkpoint_location):
            if forms.contains(other, self.quarantine_place) or forms.contains(
                self.quarantine_place, other
            ):
                raise SpecError(
                    f"quarantineUri {self.quarantine_place!r} and {other!r} lie in each other: "
                    "give the quarantine a folder of its own"
                )

    @property
    def keeps_indices(self) -> bool:
        """Return whether the driver refreshes indices.

        An epoch in complete mode drops them, and with ``routeBy`` each route has its own.
        """
        return self.refresh_indices and not (self.output_mode.effect.replaces_all or self.route_by)

    @property
    def quarantines(self) -> bool:
        """Return whether rows may go to the quarantine."""
        by_expectation = any(each.action is Action.QUARANTINE for each in self.expectations)
        return self.keep_refused or by_expectation

    @property
    def quarantine_place(self) -> str:
        """Return the URI of the quarantine."""
        return self.quarantine_uri or uri_beside(self.uri, QUARANTINE)

    def _check_sequence(self) -> None:
        if self.sequence_by and not self.merge_keys:
            raise SpecError("sequenceBy needs mergeKeys: it orders the records of one key")
        needing = {
            "tombstoneRetention": self.tombstone_retention != _WEEK,
            "truncateWhen": self.truncate_when is not None,
            "ignoreNullUpdates": self.ignore_null_updates,
            "scdType": self.scd_type == 2,
        }
        if not self.sequence_by and (extra := [name for name, is_set in needing.items() if is_set]):
            raise SpecError(f"{', '.join(extra)} needs sequenceBy: it says which record is newer")
        if both := sorted({*self.merge_keys} & {*self.sequence_by}):
            raise SpecError(
                f"sequenceBy names {both}, which mergeKeys names too: all records of a key would "
                "have one sequence"
            )
        if self.track_history_columns and self.scd_type == 1:
            raise SpecError("trackHistoryColumns needs scdType=2: it says when a version begins")
        if self.ignore_null_updates and self.scd_type == 2:
            raise SpecError(
                "ignoreNullUpdates does not go with scdType=2: a late record would change values "
                "of all versions after it. Fill the nulls in the source or in sql"
            )
        if self.keep_refused and self.scd_type == 2:
            raise SpecError(
                "onRefusedRow=quarantine does not go with scdType=2 yet: set onRefusedRow=fail"
            )
        if self.track_history_columns and self.add_columns:
            raise SpecError(
                "schemaEvolution=addColumns does not go with trackHistoryColumns: what is "
                "remembered of a version's records has the columns of their time"
            )
        stored = {*self.merge_keys, *(self.sequence_by if self.scd_type == 1 else ())}
        if both := sorted(stored & {*self.except_columns}):
            raise SpecError(
                f"exceptColumns names {both}: the dataset needs the columns of mergeKeys and "
                "sequenceBy, to compare later records with them"
            )

    @property
    def division(self) -> str:
        """Return a SHA-256 of the options that decide which rows go into a side table."""
        written = self.to_json()
        deciding = {name: written.get(name) for name in _DIVIDING}
        return sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    @property
    def commit_mode(self) -> OutputMode:
        """Return how an epoch is committed; a classic update is an append of delta rows."""
        return OutputMode.APPEND if self.update_as_append else self.output_mode
