"""Which columns a source reads, and whether each version has them in the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_lance.exceptions import SchemaMismatchError, SpecError
from airflow_provider_lance.protocol.dataset import LanceDatasetPort

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SourceColumns"]


@dataclass(frozen=True)
class SourceColumns:
    """The columns of one query, as the newest version had them when it started.

    ``chosen`` says that the user named them; then columns that are added later are no matter.
    ``ids`` are Lance's numbers of the columns, by name: a column that is renamed keeps its own.
    """

    uri: str
    version: int
    schema: pa.Schema
    chosen: bool
    ids: Mapping[str, int]

    @classmethod
    def of(cls, port: LanceDatasetPort, names: Sequence[str] = ()) -> SourceColumns:
        """Choose columns by name; all of them by default.

        :raises SpecError: the dataset lacks one.
        """
        import pyarrow as pa

        schema = port.dataset.schema
        if missing := [name for name in names if name not in schema.names]:
            raise SpecError(
                f"columns={','.join(names)} names {missing}, and {port.uri} has {schema.names}"
            )
        kept = [schema.field(name) for name in names] if names else list(schema)
        return cls(port.uri, port.version, pa.schema(kept), bool(names), _ids(port))

    @property
    def names(self) -> list[str]:
        """Return the names in order."""
        return list(self.schema.names)

    def check(self, port: LanceDatasetPort) -> None:
        """Refuse a version in which a column has another type or name, or that adds or lacks one.

        A version from before the query's start may lack a column that was added since, if nulls
        may take its place.

        :raises SchemaMismatchError: names the versions, the columns and their types.
        """
        theirs = port.dataset.schema
        is_later = port.version > self.version
        found: list[str] = []
        names = {number: name for name, number in _ids(port).items()}
        for field in self.schema:
            if field.name not in theirs.names:
                if named := names.get(self.ids[field.name]):
                    found.append(f"{field.name} is named {named}")
                elif is_later or not field.nullable:
                    found.append(f"{field.name} ({field.type}) is missing")
                continue
            other = theirs.field(field.name)
            if other.type != field.type:
                found.append(f"{field.name} is {other.type}, not {field.type}")
            elif other.nullable and not field.nullable:
                found.append(f"{field.name} may be null")
        if is_later and not self.chosen:
            found += [
                f"{field.name} ({field.type}) is new"
                for field in theirs
                if field.name not in self.schema.names
            ]
        if not found:
            return
        ways = (
            "Load the dataset and start the query again to read it with the columns that it has now"
            if is_later
            else "Start the query with a new checkpointLocation and query id, which begins with a "
            "snapshot, or name other columns with the option columns"
        )
        raise SchemaMismatchError(
            f"version {port.version} of {self.uri} has other columns than version {self.version}, "
            f"with which this query started: {'; '.join(found)}. {ways}"
        )


def _ids(port: LanceDatasetPort) -> dict[str, int]:
    return {field.name(): field.id() for field in port.dataset.lance_schema.fields()}
