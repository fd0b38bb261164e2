"""A stream in OpenLineage: source, dataset, versions before and after, rows.

OpenLineage's provider calls these methods if it is installed; nothing else imports it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_lance.exceptions import LanceStreamError
from airflow_provider_lance.hooks.lance import LanceHook
from airflow_provider_lance.operators.specification import (
    default_query_id,
    is_lance,
    resolved_source,
)
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.row_checks import RowChecks

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

__all__ = ["StreamLineage", "StreamResult", "file_name", "is_wanted", "source_names"]

_FACET = "lanceStream"
_REPORTED = (
    "launchId",
    "reason",
    "epochs",
    "deletes",
    "firstEpoch",
    "lastEpoch",
    "watermark",
    "error",
)
_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs"}
_CONTAINERS = {"abfs": "abfss", "abfss": "abfss", "wasbs": "wasbs"}


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The result of a task's stream after its end.

    ``before`` is the dataset's version when the task began, ``None`` if there was no dataset or it
    could not be read. ``rows`` are those of all drivers of the task try. ``summary`` is the last
    driver's, if it left one.
    """

    before: int | None
    rows: int
    summary: Mapping[str, Any] | None


@cache
def is_wanted() -> bool:
    """Return whether OpenLineage's provider is installed; imports nothing from it."""
    try:
        return importlib.util.find_spec("airflow.providers.openlineage.extractors") is not None
    except ImportError:
        return False


class StreamLineage:
    """The methods that OpenLineage's provider calls on an operator that streams."""

    uri: str
    query_id: str | None
    source: dict[str, Any] | None
    sql: str | None
    lance_conn_id: str | None
    result: StreamResult | None = None

    if TYPE_CHECKING:

        @cached_property
        def source_hook(self) -> LanceHook: ...

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return source and dataset."""
        return self._lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return source and dataset, and the stream's result, also of one that failed."""
        return self._lineage(self.result)

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    def _lineage(self, result: StreamResult | None) -> OperatorLineage[Any, Any]:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import (
            RunFacet,
            dataset_version_dataset,
            output_statistics_output_dataset,
            sql_job,
            storage_dataset,
        )

        uri = self.uri
        with suppress(LanceStreamError):  # the task itself reports what is wrong with it
            uri = LanceHook(self.lance_conn_id).resolve(uri)
        summary = dict(result.summary or {}) if result else {}
        after, (namespace, name) = summary.get("version"), file_name(uri)
        storage = {"storage": storage_dataset.StorageDatasetFacet("lance", fileFormat="lance")}
        facets: dict[str, Any] = dict(storage)
        if after is not None:
            facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(after))
        query_id = default_query_id(self.uri) if self.query_id is None else self.query_id
        seen: dict[str, Any] = {"queryId": query_id}
        statistics: dict[str, Any] = {}
        if result:
            seen |= {name: summary[name] for name in _REPORTED if summary.get(name) is not None}
            seen |= {"versionBefore": result.before, "versionAfter": after, "rows": result.rows}
            made = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
            statistics["outputStatistics"] = made(rowCount=result.rows)
        checks = _checks(summary)
        if checks:
            seen |= checks.to_json()
        source, read = self.source, storage if is_lance(self.source) else {}
        with suppress(LanceStreamError):
            source = resolved_source(source, self.source_hook)
        return OperatorLineage(
            inputs=[
                InputDataset(*names, facets=dict(read), inputFacets=_assertions(checks))
                for names in source_names(source)
            ],
            outputs=[OutputDataset(namespace, name, facets=facets, outputFacets=statistics)],
            run_facets={_FACET: RunFacet().with_additional_properties(**seen)},
            job_facets={"sql": sql_job.SQLJobFacet(query=self.sql)} if self.sql else {},
        )


def _checks(summary: Mapping[str, Any]) -> RowChecks:
    """Return what a summary says of the expectations; nothing if it says nothing that is valid."""
    try:
        return RowChecks.read_json(summary.get("checks"))
    except ValueError:
        return RowChecks()


def _assertions(checks: RowChecks) -> dict[str, Any]:
    """Return the facet of data quality: each expectation, and whether all rows met it."""
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality

    assertions = [
        quality.Assertion(assertion=name, success=not each.unmet)
        for name, each in checks.expectations.items()
    ]
    if not assertions:
        return {}
    facet = quality.DataQualityAssertionsDatasetFacet(assertions=assertions)
    return {"dataQualityAssertions": facet}


def source_names(source: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of each dataset that a source reads, as far as its options say.

    By OpenLineage's naming conventions; a topic pattern or a user's function yields none.
    """
    given = source.get("options") if isinstance(source, Mapping) else None
    if not isinstance(source, Mapping) or not isinstance(given, Mapping):
        return
    options = {str(name).lower(): str(value) for name, value in given.items()}
    if str(source.get("format")).lower() == "kafka":
        servers = options.get("kafka.bootstrap.servers", "")
        topics = options.get("subscribe", "").split(",")
        with suppress(ValueError):
            topics += list(json.loads(options.get("assign", "{}")))
        for topic in sorted({topic.strip() for topic in topics} - {""}):
            yield f"kafka://{servers.partition(',')[0].strip()}", topic
    elif path := options.get("path"):
        yield file_name(path)


def file_name(uri: str) -> tuple[str, str]:
    """Return namespace and name of a file or folder, by OpenLineage's naming conventions.

    A user or password in the URI is omitted.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "file", shown(uri)
    path = parts.path.rstrip("/") or "/"
    host = parts.netloc.rpartition("@")[2]
    if store := _OBJECT_STORES.get(parts.scheme):
        return f"{store}://{host}", path.lstrip("/") or "/"
    if store := _CONTAINERS.get(parts.scheme):
        container = parts.netloc.rpartition("@")[0].partition(":")[0]
        return f"{store}://{container}@{host}", path.lstrip("/") or "/"
    if parts.scheme in ("", "file") and not host:
        return "file", path
    return f"{parts.scheme}://{host}", path
