"""Checks of an operator's arguments while the DAG is parsed, as far as they hold no template.

The same parsers read the rendered arguments again before anything is launched. A value that a
template will fill in is replaced by one that breaks no rule.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.backends.submission import check_submission
from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.hooks.lance import LanceHook, Store
from airflow_provider_lance.operators.specification import (
    default_query_id,
    doubts,
    is_lance,
    job_spec,
    mapping,
    resolved_source,
    spelled,
)
from airflow_provider_lance.operators.supervision import Supervision
from airflow_provider_lance.protocol.codec import require_query_id
from airflow_provider_lance.protocol.decoding import shown
from airflow_provider_lance.protocol.option_parsers import parsed, text
from airflow_provider_lance.spec.job import AVAILABLE_NOW
from airflow_provider_lance.spec.sink_options import SinkOptions

if TYPE_CHECKING:
    from airflow_provider_lance.operators.stream import LanceStreamOperator

__all__ = ["check_dataset", "check_stream", "is_mapped", "is_open"]

_BASE, _CHECKPOINTS = "/template/datasets", "/template/checkpoints"
_SOURCE_BASE = "/template/sources"
_WORD = "template"
_MODE = ("outputMode", "mergeKeys", "updateAsAppend", "deleteWhen")
"""While one of them is a template, it is unknown whether they contradict each other."""


def is_open(value: object) -> bool:
    """Return whether a value is known at run time only: a template, or another task's result."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or value.endswith(".sql")
    if isinstance(value, Mapping):
        return any(map(is_open, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_open, value))
    return hasattr(value, "resolve") and not isinstance(value, os.PathLike)


def is_mapped(operator: object) -> bool:
    """Return whether an operator is being made from a mapped one, which happens in the task.

    ``execute`` then reads its arguments, and an error there ends the task without retries.
    """
    return bool(getattr(operator, "_BaseOperator__from_mapped", False))


def check_dataset(uri: Any, query_id: Any, lance_conn_id: Any) -> tuple[str, str]:
    """Check a dataset's URI and a query id; return values, with templates replaced.

    :param query_id: ``None`` means the dataset's name.
    :raises SpecError: one of them has the wrong form, or a relative name has no base URI.
    """
    hook = _unread(lance_conn_id)
    place = f"{_BASE}/{_WORD}" if is_open(uri) else hook.resolve(_text(uri, "uri"))
    if query_id is None:
        return place, default_query_id(place)
    return place, _WORD if is_open(query_id) else require_query_id(query_id)


def check_stream(operator: LanceStreamOperator) -> None:
    """Check a stream operator's arguments as far as they hold no template.

    :raises SpecError: an argument is missing, unknown, has the wrong form, or contradicts another.
    """
    if not isinstance(operator.supervision, Supervision):
        raise SpecError(
            "supervision must be a Supervision(...) of airflow_provider_lance.operators."
            f"supervision, got {shown(operator.supervision)}"
        )
    for name in ("lance_conn_id", "source_conn_id", "spark_conn_id", "py_files"):
        value = getattr(operator, name)
        if value is not None and not is_open(value):
            _text(value, name)
    check_submission(
        conf=_closed(operator.conf, "conf"),
        further=_closed(operator.spark_submit, "spark_submit"),
        deploy_mode=_or(operator.deploy_mode, None),
        packages=_or(operator.packages, None),
    )
    uri, query_id = check_dataset(operator.uri, operator.query_id, operator.lance_conn_id)
    checkpoint = operator.checkpoint_location
    if checkpoint is None:
        checkpoint = _unread(operator.lance_conn_id).checkpoint_location(query_id)
    options, mode = _sink_options(operator)
    spec = job_spec(
        uri=uri,
        query_id=query_id,
        checkpoint_location=_or(checkpoint, f"{_CHECKPOINTS}/{_WORD}"),
        output_mode=mode,
        create_if_missing=_or(operator.create_if_missing, False),
        sink_options=options,
        storage_options={},
        source=_source(operator),
        sql=_or(operator.sql, "SELECT 1"),
        dataframe=_or(operator.dataframe, f"{_WORD}:{_WORD}"),
        arguments=_filled(operator.arguments),
        trigger=_or(operator.trigger, AVAILABLE_NOW),
    )
    for warning in doubts(spec):
        warnings.warn(f"{operator.task_id}: {warning}", UserWarning, stacklevel=2)


def _unread(lance_conn_id: Any, base: str = _BASE) -> LanceHook:
    """Return a hook that reads no connection and accepts all that one may contain."""
    hook = LanceHook(None)
    if lance_conn_id is not None:
        hook.store = Store(base_uri=base, checkpoint_root=_CHECKPOINTS)
    return hook


def _sink_options(operator: LanceStreamOperator) -> tuple[dict[str, Any], Any]:
    """Return the sink's options without those that are templates, and the output mode."""
    unknown = is_open(operator.sink_options) and not isinstance(operator.sink_options, Mapping)
    given = spelled(None if unknown else operator.sink_options)
    options, mode = _closed(given, "sink_options"), _or(operator.output_mode, "append")
    parsed(SinkOptions, {**options, "outputMode": mode}, "sink_options")
    if unknown or any(is_open(each) for each in (operator.output_mode, *map(given.get, _MODE))):
        return {name: options[name] for name in options if name not in _MODE}, "append"
    return options, mode


def _source(operator: LanceStreamOperator) -> Any:
    source = operator.source
    if not isinstance(source, Mapping):
        return {"format": _WORD} if is_open(source) else source
    known = {name: value for name, value in source.items() if not is_open(value)}
    if is_open(source.get("format")):
        known["format"] = _WORD
    if not isinstance(options := source.get("options"), Mapping):
        return known
    if not is_lance(known):
        if operator.source_conn_id is not None and known.get("format") != _WORD:
            raise SpecError(
                f"source_conn_id={shown(operator.source_conn_id)} is for a source with format "
                f"'lance', and this one has format {shown(known.get('format'))}: leave it out"
            )
        return {**known, "options": _filled(options)}
    # A template stands for any value, and only the path must not be missing.
    closed = {name: value for name, value in options.items() if not is_open(value)}
    if any(is_open(value) and str(name).lower() == "path" for name, value in options.items()):
        closed["path"] = f"{_SOURCE_BASE}/{_WORD}"
    own = operator.source_conn_id
    hook = _unread(operator.lance_conn_id) if own is None else _unread(own, _SOURCE_BASE)
    return resolved_source({**known, "options": closed}, hook)


def _filled(values: Any) -> Any:
    """Return a mapping with its templates replaced."""
    if not isinstance(values, Mapping):
        return _or(values, None)
    return {name: _or(value, _WORD) for name, value in values.items()}


def _closed(value: Any, name: str) -> dict[str, Any]:
    """Return the part of a mapping that holds no template."""
    if is_open(value) and not isinstance(value, Mapping):
        return {}
    return {key: None if is_open(each) else each for key, each in mapping(value, name).items()}


def _or(value: Any, stand_in: Any) -> Any:
    return stand_in if is_open(value) else value


def _text(value: Any, name: str) -> str:
    try:
        return text(value)
    except ValueError as error:
        raise SpecError(f"{name} must be {error}, got {shown(value)}") from None
