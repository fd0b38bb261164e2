"""What a person reads when a store fails: one sentence with the store's answer and what to do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import lance
import pytest

from airflow_provider_lance.exceptions import StorageUnavailableError
from airflow_provider_lance.protocol.files import open_files
from tests.support.cli import Ran, python, typed
from tests.support.maintenance import rows
from tests.support.s3 import IMPATIENT, SECRET, S3Server, s3_server
from tests.support.stores import free_endpoint, hanging_store, refusing_store, untrusted_store

URI = "s3://lake/orders.lance"
RAW = re.compile(
    r"LanceError|/home/runner|<\?xml|<Error>|\bErr\(|AWS Error|curlCode|errno|os error"
)
"""What only Lance's and pyarrow's own texts have."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server("lake") as server:
        yield server


def look(folder: Path, options: dict[str, str], uri: str = URI, *words: str) -> Ran:
    """Type `status` with these storage options; check what holds for every error."""
    path = folder / "options.json"
    path.write_text(json.dumps(IMPATIENT | options))
    ran = typed("status", uri, "--storage-options-file", str(path), "-o", "json", *words)
    error = ran.document["error"]
    assert ran.err.splitlines()[-1] == f"error: {error['message']}"
    assert not RAW.search(error["message"]), error["message"]
    assert SECRET not in ran.out + ran.err
    assert ran.status == error["exit"]
    return ran


def test_an_unknown_bucket(s3: S3Server, tmp_path: Path) -> None:
    ran = look(tmp_path, s3.options(), "s3://lakes/orders.lance")
    assert ran.status == 2
    assert ran.document["error"]["class"] == "DatasetNotFoundError"
    assert ran.document["error"]["message"] == (
        "cannot read s3://lakes/orders.lance: there is no such bucket (NoSuchBucket: The specified "
        "bucket does not exist); check the bucket's name and the endpoint"
    )
    assert "404 Not Found" in ran.document["error"]["detail"]


def test_a_key_that_the_store_does_not_know(tmp_path: Path) -> None:
    with s3_server("lake", checks_keys=True) as server:
        options = server.options()
        ran = look(tmp_path, options)
        assert ran.status == 3
        assert ran.document["error"]["message"] == (
            f"cannot read {URI}: the store does not accept these credentials (InvalidAccessKeyId: "
            "The AWS Access Key Id you provided does not exist in our records); check the "
            "credentials: the connection's, the storage options' or the environment's"
        )
        with pytest.raises(StorageUnavailableError) as caught:
            open_files("s3://lake/checkpoint", options).names("")
    assert caught.value.denied
    assert str(caught.value).startswith(
        "cannot reach s3://lake/checkpoint: the store does not accept these credentials "
        "(INVALID_ACCESS_KEY_ID: The AWS Access Key Id"
    )


@pytest.mark.parametrize(
    ("status", "code", "message", "said"),
    [
        (400, "ExpiredToken", "The provided token has expired.", "its credentials have expired"),
        (403, "AccessDenied", "Access Denied", "the store denies access"),
        (403, "RequestTimeTooSkewed", "Too large.", "this machine's clock is not the store's"),
        (503, "SlowDown", "Please reduce your rate.", "the store asks for fewer requests"),
        (301, "PermanentRedirect", "Use the endpoint.", "the bucket is in another region"),
    ],
)
def test_a_store_that_refuses(
    tmp_path: Path, s3: S3Server, status: int, code: str, message: str, said: str
) -> None:
    with refusing_store(status, code, message) as endpoint:
        ran = look(tmp_path, s3.options(endpoint))
        assert ran.document["error"]["message"].startswith(f"cannot read {URI}: {said}")
        with pytest.raises(StorageUnavailableError) as caught:
            open_files("s3://lake/checkpoint", s3.options(endpoint)).names("")
    assert str(caught.value).startswith(f"cannot reach s3://lake/checkpoint: {said}")
    assert not RAW.search(str(caught.value))
    assert SECRET not in caught.value.detail
    assert ran.status == 3


def unreachable(folder: Path) -> dict[str, tuple[AbstractContextManager[str] | str, str]]:
    return {
        "nothing listens": (free_endpoint(), r"nothing listens at http://127\.0\.0\.1:\d+"),
        "no such host": ("http://store.invalid:9000", "host name store.invalid is unknown here"),
        "not trusted": (untrusted_store(folder), "certificate of https://localhost:.* not trusted"),
    }


@pytest.mark.parametrize("case", unreachable(Path()))
def test_a_store_that_gives_no_connection(tmp_path: Path, s3: S3Server, case: str) -> None:
    place, said = unreachable(tmp_path)[case]
    if isinstance(place, str):
        ran = look(tmp_path, s3.options(place))
    else:
        with place as endpoint:
            ran = look(tmp_path, s3.options(endpoint))
    assert ran.status == 3
    assert re.search(said, ran.document["error"]["message"]), ran.document
    assert "check the endpoint" in ran.document["error"]["message"]


def test_https_where_the_store_speaks_http(tmp_path: Path, s3: S3Server) -> None:
    ran = look(tmp_path, s3.options(s3.endpoint.replace("http:", "https:")))
    assert "does not speak TLS" in ran.document["error"]["message"]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = look(tmp_path, {}, str(tmp_path / "file" / "orders.lance"))
    assert ran.status == 3
    assert ran.document["error"]["message"] == (
        f"cannot read {tmp_path}/file/orders.lance: a part of the path is a file and no folder; "
        "check the path"
    )


AS_NOBODY = """
import os, sys
import lance, pyarrow.fs
from airflow_provider_lance.cli.main import main
import airflow_provider_lance.cli.status, airflow_provider_lance.cli.check
os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can become another user")
def test_a_folder_that_this_user_may_not_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "orders.lance")
    lance.write_dataset(rows(0, 3), uri)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    (tmp_path / "orders.lance" / "_versions").chmod(0o700)
    ran = python("-c", AS_NOBODY, "status", uri, "-o", "json")
    assert ran.status == 3
    assert ran.document["error"]["message"] == (
        f"cannot read {uri}: this user has no permission (user id 65534); let the user read and "
        "write it"
    )


COMMANDS: list[tuple[str, ...]] = [
    ("status",),
    ("check",),
    ("epochs",),
    ("watch",),
    ("stop",),
    ("release",),
    ("resolve", "files"),
    ("quarantine",),
    ("optimize",),
    ("cleanup",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_store_that_hangs_ends_every_command_in_time(
    tmp_path: Path, s3: S3Server, command: tuple[str, ...]
) -> None:
    with hanging_store() as endpoint:
        path = tmp_path / "options.json"
        path.write_text(json.dumps(s3.options(endpoint)))
        reach = ("--storage-options-file", str(path), "--timeout", "0.3s", "-o", "json")
        ran = typed(*command, URI, *reach)
    assert ran.status == 3, ran.out + ran.err
    assert ran.document["error"]["message"].startswith(f"{URI} did not answer within 0.3 s")


def test_a_hanging_store_is_named_while_it_hangs_and_left_at_once(
    tmp_path: Path, s3: S3Server
) -> None:
    with hanging_store() as endpoint:
        path = tmp_path / "options.json"
        path.write_text(json.dumps(s3.options(endpoint)))
        command = ["-m", "airflow_provider_lance.cli", "status", URI]
        command += ["--storage-options-file", str(path), "--timeout", "4"]
        with subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr
            assert process.stderr.readline() == f"still waiting for {URI} (3 s)\n"
            began = time.monotonic()
            said = process.stderr.readline()
            assert process.wait(20) == 3
    assert said == (
        f"error: {URI} did not answer within 4 s; check the store and the network, or wait longer "
        "with --timeout\n"
    )
    assert time.monotonic() - began < 3, "Lance itself gives up after three minutes"


def test_a_checkpoint_on_a_store_that_hangs(tmp_path: Path, s3: S3Server) -> None:
    """The dataset answers, and the place of the checkpoint does not."""
    uri = str(tmp_path / "orders.lance")
    lance.write_dataset(rows(0, 3), uri)
    with hanging_store() as endpoint:
        path = tmp_path / "options.json"
        path.write_text(json.dumps(s3.options(endpoint)))
        ran = typed(
            *("check", uri, "orders", "--checkpoint", "s3://lake/checkpoint", "-o", "json"),
            *("--storage-options-file", str(path), "--timeout", "0.5"),
        )
    assert ran.status == 3, ran.out + ran.err
    assert "did not answer within 0.5 s" in ran.document["error"]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ("status", "-o", "json"),
        ("status", "/t.lance", "--output=json", "--nonsense"),
        ("-o", "json"),
        ("status", "/t.lance", "--timeout", "soon", "--output", "json"),
    ],
)
def test_words_that_cannot_be_run_are_told_in_json_too(words: tuple[str, ...]) -> None:
    ran = typed(*words)
    assert ran.status == 2
    assert (ran.document["error"]["class"], ran.document["error"]["exit"]) == ("SpecError", 2)
    assert ran.document["error"]["message"] in ran.err


def test_no_time_to_wait_is_refused() -> None:
    ran = typed("status", "/t.lance", "--timeout", "0", "-o", "json")
    assert (ran.status, ran.document["error"]["class"]) == (2, "SpecError")
