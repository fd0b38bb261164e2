"""What a user may write about a stream: options and job specification, parsed once, then frozen.

The names are Spark's (camelCase). An unknown name is refused with the list of valid ones. Both
sides of a launch parse with this module: Airflow before anything is started, the driver again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self
from urllib.parse import urlsplit

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.streaming.epoch import OutputMode
from airflow_provider_lance.streaming.properties import require_query_id
from airflow_provider_lance.streaming.refusal import OnHistoryGap

__all__ = ["AVAILABLE_NOW", "JobSpec", "SinkOptions", "Source"]

AVAILABLE_NOW = "availableNow"
_INTERVAL = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")
_LAUNCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value


def _location(value: Any) -> str:
    text = _text(value)
    if not urlsplit(text).scheme and not text.startswith("/"):
        raise ValueError(
            "an absolute path or a URI; a relative path means another folder on each host"
        )
    if not text.strip("/"):
        raise ValueError("a folder of its own, not the root")
    return text.rstrip("/")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("true or false")


def _positive(value: Any) -> int:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of 1 or more")
    return value


def _count(value: Any) -> int:
    return 0 if value in (0, "0") and not isinstance(value, bool) else _positive(value)


def _names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of column names, or one text with commas between them")
    names = tuple(part.strip() for part in parts if part.strip())
    if len(set(names)) != len(names):
        raise ValueError("a list that names each column once")
    return names


def _strings(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("a mapping of texts")
    plain = {True: "true", False: "false"}
    if any(isinstance(item, list | tuple | dict) or item is None for item in value.values()):
        raise ValueError("a mapping of texts")
    return {
        name: plain[item] if isinstance(item, bool) else str(item) for name, item in value.items()
    }


def _vector_sizes(value: Any) -> Mapping[str, int]:
    if isinstance(value, str):
        pairs = [part.rpartition(":") for part in value.split(",") if part.strip()]
        value = {name.strip(): size.strip() for name, _, size in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of column to vector size, or text like 'embedding:768'")
    return {str(name): _positive(size) for name, size in value.items()}


def _mode(value: Any) -> OutputMode:
    try:
        return OutputMode(str(value).lower())
    except ValueError:
        raise ValueError("one of 'append', 'complete', 'update'") from None


def _new_generation(value: Any) -> bool:
    if value in ("fail", "newGeneration"):
        return bool(value == "newGeneration")
    raise ValueError("'fail' or 'newGeneration'")


def _trigger(value: Any) -> str:
    if value == AVAILABLE_NOW or (isinstance(value, str) and _INTERVAL.fullmatch(value)):
        return str(value)
    raise ValueError("'availableNow' or an interval such as '10 seconds'")


def _launch_id(value: Any) -> str:
    if isinstance(value, str) and _LAUNCH_ID.fullmatch(value):
        return value
    raise ValueError("a name of letters, digits, '.', '_' and '-', for it becomes a folder")


def _function(value: Any) -> str:
    if isinstance(value, str) and _FUNCTION.fullmatch(value):
        return value
    raise ValueError("'module:function', a function of (spark, arguments) that returns a DataFrame")


def _option(parse: Callable[[Any], Any], default: Any, *, name: str, secret: bool = False) -> Any:
    """Declare one option: how it is read, its name for users, and whether it may be shown."""
    metadata = {"parse": parse, "name": name}
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def _parsed(cls: Any, given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Turn a user's mapping into constructor arguments of a frozen option class."""
    if not isinstance(given, Mapping):
        raise SpecError(f"{what}: expected a mapping of options, got {type(given).__name__}")
    known = {item.metadata["name"]: item for item in fields(cls)}
    if unknown := sorted(set(given) - set(known), key=str):
        raise SpecError(f"{what}: unknown {unknown}; valid names are {sorted(known)}")
    arguments = {}
    for name, item in known.items():
        if given.get(name) is None:
            continue
        try:
            arguments[item.name] = item.metadata["parse"](given[name])
        except (TypeError, ValueError) as error:
            seen = "" if not item.repr else f", got {given[name]!r}"
            raise SpecError(f"{what}: {name} must be {error}{seen}") from None
    return arguments


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """The sink's options, by the names users type.

    - ``uri``, ``queryId``, ``checkpointLocation``: required; both places absolute.
    - ``outputMode``: ``append``, ``complete`` or ``update``.
    - ``mergeKeys``, ``deleteWhen``: for an upsert, the columns that identify a row and a SQL
      condition over the stream's columns under which the row is deleted instead.
    - ``updateAsAppend``: append every changed row of an update instead.
    - ``smallEpochRows``: partitions with at most so many rows (and 2 MiB) are gathered into one
      fragment; rows are counted, not estimated. 0 writes everything on the executors.
    - ``targetRowsPerFragment``: rows after which a new fragment begins.
    - ``watermarkEvery``: epochs between two folds of the watermark.
    - ``createIfMissing``, ``vectorSizes``: make the dataset with the stream's columns, and list
      columns as vectors of a fixed size.
    - ``onCheckpointChange``: ``fail`` or ``newGeneration``.
    - ``onHistoryGap``: ``fail``, ``committed:<epoch>`` or ``missing:<epoch>``.
    - ``storageOptions``: Lance's, secrets included; never shown.
    """

    uri: str = _option(_location, "", name="uri")
    query_id: str = _option(require_query_id, "", name="queryId")
    checkpoint_location: str = _option(_location, "", name="checkpointLocation")
    output_mode: OutputMode = _option(_mode, OutputMode.APPEND, name="outputMode")
    merge_keys: tuple[str, ...] = _option(_names, (), name="mergeKeys")
    delete_when: str | None = _option(_text, None, name="deleteWhen")
    update_as_append: bool = _option(_flag, False, name="updateAsAppend")
    small_epoch_rows: int = _option(_count, 20_000, name="smallEpochRows")
    target_rows_per_fragment: int = _option(_positive, 1_048_576, name="targetRowsPerFragment")
    watermark_every: int = _option(_positive, 10, name="watermarkEvery")
    create_if_missing: bool = _option(_flag, False, name="createIfMissing")
    vector_sizes: Mapping[str, int] = _option(_vector_sizes, dict, name="vectorSizes")
    new_generation: bool = _option(_new_generation, False, name="onCheckpointChange")
    on_history_gap: OnHistoryGap = _option(OnHistoryGap.parse, OnHistoryGap(), name="onHistoryGap")
    storage_options: Mapping[str, str] = _option(_strings, dict, name="storageOptions", secret=True)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read options as a user writes them.

        :raises SpecError: unknown name, wrong form, missing option, or two that contradict.
        """
        options = cls(**_parsed(cls, given, "sink options"))
        require_query_id(options.query_id)
        for name in ("uri", "checkpointLocation"):
            if not given.get(name):
                raise SpecError(f"sink options: {name} is missing")
        options._refuse_contradictions()
        return options

    def _refuse_contradictions(self) -> None:
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
        if f"{self.checkpoint_location}/".startswith(f"{self.uri}/"):
            raise SpecError(
                f"checkpointLocation {self.checkpoint_location!r} lies in the dataset "
                f"{self.uri!r}: give Spark's files a folder of their own"
            )

    @property
    def commit_mode(self) -> OutputMode:
        """Return how an epoch is committed; a classic update is an append of delta rows."""
        return OutputMode.APPEND if self.update_as_append else self.output_mode

    def to_json(self) -> dict[str, Any]:
        """Return the options as :meth:`parse` reads them, secrets included."""
        gap = self.on_history_gap
        answer = "committed" if gap.landed else "missing"
        special: dict[str, Any] = {
            "outputMode": self.output_mode.value,
            "mergeKeys": list(self.merge_keys),
            "vectorSizes": dict(self.vector_sizes),
            "storageOptions": dict(self.storage_options),
            "onCheckpointChange": "newGeneration" if self.new_generation else "fail",
            "onHistoryGap": "fail" if gap.epoch_id is None else f"{answer}:{gap.epoch_id}",
        }
        plain = {item.metadata["name"]: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in (plain | special).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Any streaming source of Spark: ``format``, its ``options``, and a DDL ``schema``."""

    format: str = _option(_text, "", name="format")
    options: Mapping[str, str] = _option(_strings, dict, name="options", secret=True)
    schema: str | None = _option(_text, None, name="schema")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read a source as a user writes it.

        :raises SpecError: unknown name, wrong form or no format.
        """
        source = cls(**_parsed(cls, given, "source"))
        if not source.format:
            raise SpecError("source: format is missing, for example 'parquet', 'kafka' or 'rate'")
        return source

    def to_json(self) -> dict[str, Any]:
        """Return the source as :meth:`parse` reads it, secrets included."""
        return {"format": self.format, "options": dict(self.options), "schema": self.schema}


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One launch of one streaming query: where rows come from, when, and where they go.

    Rows come from ``source``, with an optional ``sql`` text over a view named ``source``, or from
    ``dataframe``, a user's ``module:function`` that is called with the Spark session and
    ``arguments``.
    """

    launch_id: str = _option(_launch_id, "", name="launchId")
    sink: SinkOptions = _option(SinkOptions.parse, SinkOptions(), name="sink")
    source: Source | None = _option(Source.parse, None, name="source")
    sql: str | None = _option(_text, None, name="sql")
    dataframe: str | None = _option(_function, None, name="dataframe")
    arguments: Mapping[str, str] = _option(_strings, dict, name="arguments", secret=True)
    trigger: str = _option(_trigger, AVAILABLE_NOW, name="trigger")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Read a specification as JSON carries it.

        :raises SpecError: unknown name, wrong form, missing part, or two that contradict.
        """
        spec = cls(**_parsed(cls, given, "job specification"))
        if not spec.sink.query_id:
            raise SpecError("job specification: sink is missing")
        if not spec.launch_id:
            raise SpecError("job specification: launchId is missing")
        if (spec.source is None) == (spec.dataframe is None):
            raise SpecError(
                "job specification: give either source (a Spark streaming format) or dataframe "
                f"('module:function'), not {'both' if spec.source else 'neither'}"
            )
        if spec.sql and spec.dataframe:
            raise SpecError("job specification: sql goes with source; put it into the function")
        return spec

    @classmethod
    def loads(cls, text: str) -> Self:
        """Read a specification from JSON text.

        :raises SpecError: not JSON, or as :meth:`parse`.
        """
        try:
            given = json.loads(text)
        except ValueError as error:
            raise SpecError(f"job specification: not JSON ({error})") from None
        return cls.parse(given)

    def dumps(self) -> str:
        """Return the specification as JSON text, secrets included: write it to a private file."""
        document = {
            "launchId": self.launch_id,
            "sink": self.sink.to_json(),
            "source": self.source.to_json() if self.source else None,
            "sql": self.sql,
            "dataframe": self.dataframe,
            "arguments": dict(self.arguments),
            "trigger": self.trigger,
        }
        return json.dumps({name: value for name, value in document.items() if value is not None})
