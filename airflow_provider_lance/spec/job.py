"""The job specification of a stream, parsed once, then frozen.

The names are Spark's (camelCase). An unknown name is refused with the list of valid ones. Both
sides of a launch parse it: Airflow before it starts anything, then the driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.protocol import option_parsers as forms
from airflow_provider_lance.protocol.json_codec import Options
from airflow_provider_lance.protocol.option_parsers import option
from airflow_provider_lance.source.options import LANCE, SourceOptions
from airflow_provider_lance.spec.envelope import EnvelopeOptions, envelope
from airflow_provider_lance.spec.sink_options import SinkOptions
from airflow_provider_lance.spec.source_options import refuse_misspelt

__all__ = ["AVAILABLE_NOW", "JobSpec", "Source"]

AVAILABLE_NOW = "availableNow"
_INTERVAL = re.compile(r"([0-9]{1,18}) (millisecond|second|minute|hour|day)s?")
_UNIT_SECONDS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def _trigger(value: Any) -> str:
    if value == AVAILABLE_NOW:
        return AVAILABLE_NOW
    found = _INTERVAL.fullmatch(value) if isinstance(value, str) else None
    if found and int(found[1]) * _UNIT_SECONDS[found[2]] <= forms.MOST_SECONDS:
        return str(value)
    raise ValueError("'availableNow' or an interval such as '10 seconds'")


@dataclass(frozen=True, kw_only=True)
class Source(Options):
    """Any streaming source of Spark: ``format``, its ``options``, and a DDL ``schema``.

    With an ``envelope``, ``debezium``, the schema is that of the rows in the source's records; see
    :class:`.EnvelopeOptions`.
    """

    format: str = option(forms.text, "", name="format")
    options: Mapping[str, str] = option(forms.strings, dict, name="options", secret=True)
    schema: str | None = option(forms.text, None, name="schema")
    envelope: str | None = option(envelope, None, name="envelope")
    envelope_options: EnvelopeOptions = option(
        EnvelopeOptions.parse, EnvelopeOptions(), name="envelopeOptions"
    )

    what = "source"

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse a source without a format, or with a misspelt option."""
        if not self.format:
            raise SpecError("source: format is missing, for example 'parquet', 'kafka' or 'rate'")
        if self.envelope and not self.schema:
            raise SpecError(
                f"source: envelope={self.envelope} needs schema, the columns of the rows in the "
                "records, for example 'id BIGINT, name STRING'"
            )
        if not self.envelope and self.envelope_options != EnvelopeOptions():
            raise SpecError("source: envelopeOptions go with envelope")
        if self.is_lance and self.envelope:
            raise SpecError("source: a Lance dataset has rows in no envelope; leave envelope out")
        if self.is_lance:
            SourceOptions.spelled(self.options)
            if self.schema:
                raise SpecError("source: a Lance dataset has its own schema; leave schema out")
        refuse_misspelt(self.format, self.options)

    @property
    def is_lance(self) -> bool:
        """Return whether the source is a Lance dataset."""
        return self.format.lower() == LANCE

    def to_json(self) -> dict[str, Any]:
        """Return the source as :meth:`parse` reads it, secrets included."""
        written = {"schema": None} | super().to_json()
        if not self.envelope:
            written.pop("envelopeOptions", None)
        return written

    @property
    def reader_schema(self) -> str | None:
        """Return the schema that Spark's reader takes; the rows' in an envelope is another."""
        return None if self.envelope else self.schema


@dataclass(frozen=True, kw_only=True)
class JobSpec(Options):
    """One launch of one streaming query: where rows come from, when, and where they go.

    Rows come from ``source``, with an optional ``sql`` text over a view named ``source``, or from
    ``dataframe``, a user's ``module:function`` that is called with the Spark session and
    ``arguments``. ``source_storage_options`` are Lance's, for the Lance datasets that either reads;
    never shown. ``launched_by`` names who launched it, for display and for finding it again.
    ``stop_grace`` is how long, in seconds, an epoch may continue after a stop request.
    """

    launch_id: str = option(forms.launch_id, "", name="launchId")
    launched_by: str = option(forms.text, "", name="launchedBy", write=lambda name: name or None)
    sink: SinkOptions = option(SinkOptions.parse, SinkOptions(), name="sink")
    source: Source | None = option(Source.parse, None, name="source")
    sql: str | None = option(forms.text, None, name="sql")
    dataframe: str | None = option(forms.function, None, name="dataframe")
    arguments: Mapping[str, str] = option(forms.strings, dict, name="arguments", secret=True)
    source_storage_options: Mapping[str, str] = option(
        forms.strings, dict, name="sourceStorageOptions", secret=True
    )
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
        if self.source and self.source.is_lance:
            path = SourceOptions.spelled(self.source.options).path
            if forms.contains(path, self.sink.uri) or forms.contains(self.sink.uri, path):
                raise SpecError(
                    f"job specification: the stream reads {path} and writes {self.sink.uri}, so it "
                    "would read its own rows for ever: give it another dataset to write"
                )
        if self.sql and self.dataframe:
            raise SpecError("job specification: sql goes with source; put it into the function")
