from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_lance.exceptions import SpecError, StorageUnavailableError
from airflow_provider_lance.protocol.files import ArrowFiles, _s3_arguments, open_files


@pytest.fixture
def files(tmp_path: Path) -> ArrowFiles:
    return open_files(str(tmp_path))


def test_missing_file_reads_as_none_and_missing_folder_as_empty(files: ArrowFiles) -> None:
    assert files.read("no/such/file") is None
    assert files.names("no/such/folder") == []


def test_writes_with_the_folders_above_and_reads_back(files: ArrowFiles, tmp_path: Path) -> None:
    files.write("a/b/c.json", b"\x00one")
    assert files.read("a/b/c.json") == b"\x00one"
    assert (tmp_path / "a" / "b" / "c.json").read_bytes() == b"\x00one"


def test_a_second_write_replaces_the_first_whole(files: ArrowFiles) -> None:
    files.write("f", b"a longer first text")
    files.write("f", b"short")
    assert files.read("f") == b"short"


def test_names_are_those_of_files_and_folders_sorted(files: ArrowFiles) -> None:
    for path in ("d/z", "d/a/deep", "d/.hidden"):
        files.write(path, b"")
    assert files.names("d") == [".hidden", "a", "z"]
    assert files.names("") == ["d"]


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/", "file:{}/"])
def test_a_folder_opens_by_path_and_by_both_spellings_of_its_uri(tmp_path: Path, form: str) -> None:
    (tmp_path / "f").write_bytes(b"here")
    opened = open_files(form.format(tmp_path))
    assert opened.read("f") == b"here"
    assert opened.names("") == ["f"]


def test_a_file_in_place_of_a_folder_is_named_in_the_error(files: ArrowFiles) -> None:
    files.write("f", b"")
    with pytest.raises(StorageUnavailableError, match=r"cannot reach .*/f/g"):
        files.write("f/g", b"")


def test_a_folder_in_place_of_a_file_is_named_in_the_error(files: ArrowFiles) -> None:
    files.write("d/f", b"")
    with pytest.raises(StorageUnavailableError, match="cannot reach .*/d"):
        files.read("d")


@pytest.mark.parametrize("location", ["ftp://host/x", "relative/path", "nonsense:/x"])
def test_a_location_that_no_filesystem_serves_is_a_spec_error(location: str) -> None:
    with pytest.raises(SpecError, match=re.escape(repr(location))):
        open_files(location)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_spellings_of_s3_open_the_same_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    from pyarrow import fs

    given: list[dict[str, str]] = []

    def open_store(**arguments: str) -> fs.FileSystem:
        given.append(arguments)
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    monkeypatch.setattr(fs, "S3FileSystem", open_store)
    opened = open_files(f"{scheme}://bucket/some/prefix", {"aws_region": "eu-west-1"})
    opened.write("f", b"x")
    assert (tmp_path / "bucket" / "some" / "prefix" / "f").read_bytes() == b"x"
    assert given == [{"region": "eu-west-1"}]


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ({"aws_access_key_id": "v"}, {"access_key": "v"}),
        ({"AWS_SECRET_ACCESS_KEY": "v"}, {"secret_key": "v"}),
        ({"session_token": "v"}, {"session_token": "v"}),
        ({"aws_session_token": "v"}, {"session_token": "v"}),
        ({"region": "v"}, {"region": "v"}),
        ({"aws_default_region": "v"}, {"region": "v"}),
        ({"aws_region": "v", "aws_default_region": "w"}, {"region": "v"}),
        (
            {"aws_endpoint": "http://127.0.0.1:9000"},
            {"endpoint_override": "127.0.0.1:9000", "scheme": "http"},
        ),
        (
            {"endpoint_url": "https://store.example"},
            {"endpoint_override": "store.example", "scheme": "https"},
        ),
        ({"endpoint": "store.example:1"}, {"endpoint_override": "store.example:1"}),
        ({"allow_http": "true", "client_max_retries": "1"}, {}),
        ({"aws_access_key_id": ""}, {}),
        ({}, {}),
    ],
)
def test_lances_options_become_pyarrows_arguments(
    option: dict[str, str], argument: dict[str, str]
) -> None:
    assert _s3_arguments(option) == argument
