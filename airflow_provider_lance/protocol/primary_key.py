"""A dataset's primary key: declared in its schema, unenforced by Lance, used to find conflicts.

Lance (14.0.2) remembers which keys a `merge_insert` of its own inserts, and refuses one that
inserts a key which another one has inserted meanwhile. What an epoch commits is made from
fragments, and pylance offers no way to give such a commit the keys that it inserts. So two upserts
of this package are made to conflict by a fragment that both name as updated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata

__all__ = ["is_primary_key", "with_meeting_point", "with_primary_key"]

_WORD = b"lance-schema:unenforced-primary-key"
_POSITION = b"lance-schema:unenforced-primary-key:position"


def with_primary_key(schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """Return a schema in which the keys are the primary key, which Lance lets be null nowhere."""
    for position, name in enumerate(keys, start=1):
        field = schema.field(name)
        metadata = {**(field.metadata or {}), _WORD: b"true"}
        if len(keys) > 1:
            metadata[_POSITION] = str(position).encode()
        number = schema.get_field_index(name)
        schema = schema.set(number, field.with_metadata(metadata).with_nullable(False))
    return schema


def is_primary_key(schema: pa.Schema, keys: Sequence[str]) -> bool:
    """Return whether a dataset declares exactly these columns as its primary key."""
    declared = [field.name for field in schema if _WORD in (field.metadata or {})]
    return set(declared) == set(keys)


def with_meeting_point(
    dataset: LanceDataset, updated: list[Any], removed: Collection[int]
) -> list[FragmentMetadata]:
    """Return an upsert's updated fragments, among them the dataset's oldest fragment.

    Two upserts from one version then name the same fragment, and Lance lets only one of them land.
    An empty dataset has none.
    """
    ids = dataset.fragment_ids()
    oldest = dataset.get_fragment(next(iter(ids))) if ids else None
    if oldest is None or oldest.fragment_id in {*removed, *(each.id for each in updated)}:
        return updated
    return [*updated, oldest.metadata]
