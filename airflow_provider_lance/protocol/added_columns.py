"""Columns that a driver adds to a dataset: the commit's stamp, and the schema with new field ids.

The commit is a barrier with a larger schema: it touches no data file, and preempts each append or
upsert that was sent from a version before it. Rows so far read as null in the new columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_lance.protocol.decoding import json_value
from airflow_provider_lance.protocol.json_codec import JsonRecord

if TYPE_CHECKING:
    import lance
    from lance.schema import LanceSchema

__all__ = ["AddedColumns", "decode_added", "encode_added", "larger_schema"]

_PROPERTY = "streaming.addedColumns"


@dataclass(frozen=True, slots=True)
class AddedColumns(JsonRecord):
    """Which columns an epoch has added, and by whom; ``columns`` are types by path."""

    query_id: str
    epoch_id: int
    generation: int
    token: int
    run_id: str
    time: str
    columns: dict[str, str]

    def __str__(self) -> str:
        named = ", ".join(f"{path} ({kind})" for path, kind in self.columns.items())
        return f"epoch {self.epoch_id} added column{'s' * (len(self.columns) > 1)} {named}"


def encode_added(added: AddedColumns) -> dict[str, str]:
    """Return the transaction properties of the commit that adds columns."""
    return {_PROPERTY: json.dumps(added.to_json(), separators=(",", ":"))}


def decode_added(properties: Mapping[str, str]) -> AddedColumns | None:
    """Read what a version's commit added; ``None`` if it is another commit, or cannot be read.

    Only shown to people: no decision about an epoch depends on it.
    """
    try:
        return AddedColumns.read_json(json_value(properties[_PROPERTY]))
    except (KeyError, ValueError):
        return None


def larger_schema(dataset: lance.LanceDataset, columns: Any) -> LanceSchema:
    """Return the dataset's schema with further nullable columns, each with a field id of its own.

    An id that any data file names must not be given again, not even that of a dropped column:
    its values would be read as the new column's. Lance assigns the ids, in a dataset in memory
    that has this schema and one fragment with the highest id. Takes 5 ms and touches no store.

    :param columns: an Arrow schema; a struct's new fields as a struct of these.
    """
    import lance
    import pyarrow as pa

    from airflow_provider_lance.protocol.dataset import lance_session

    operations = lance.LanceOperation
    files = [file for each in dataset.get_fragments() for file in each.data_files()]
    newest = max(files, key=lambda file: max(file.fields, default=-1), default=None)
    fragments = [lance.FragmentMetadata(id=0, files=[newest], physical_rows=1)] if newest else []
    scratch = lance.write_dataset(
        pa.table({"scratch": pa.nulls(0)}),
        "memory://schema",
        mode="create",
        session=lance_session(),
    )
    scratch = lance.LanceDataset.commit(
        scratch,
        operations.Overwrite(dataset.lance_schema, fragments),
        read_version=scratch.version,
    )
    scratch.add_columns(columns)
    return scratch.lance_schema
