"""A second S3 server, which checks a condition and writes in one step, as Amazon's does.

Dataset and checkpoint are both on it. With ``VERSITYGW_FULL=1`` the race is longer, and a driver is
killed at every step of its work: 4 minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lance
import pyspark
import pytest

from airflow_provider_lance.diagnostics.check import check
from airflow_provider_lance.protocol.codec import decode_query
from airflow_provider_lance.protocol.dataset import LanceDatasetPort, open_dataset
from airflow_provider_lance.protocol.failpoints import Failpoint
from airflow_provider_lance.protocol.files import open_files
from airflow_provider_lance.protocol.watermark import exact_watermark
from tests.support.cli import typed
from tests.support.contender import CHECKPOINT_ID
from tests.support.drivers import epoch_rows, lance_world
from tests.support.jars import JarsUnavailableError, fetched_jars
from tests.support.maintenance import rows
from tests.support.processes import end, finish, python, wait_for
from tests.support.recovery import expect_clean
from tests.support.s3 import REGION, SECRET, USER, S3Server
from tests.support.sparkstream import Stream, orders, spec, write_spec
from tests.support.versitygw import GUEST, GoUnavailableError, versitygw

pytestmark = pytest.mark.slow

FULL = bool(os.environ.get("VERSITYGW_FULL"))
RACE = 150 if FULL else 30
"""Epochs that two drivers fight for."""
ROWS = 20
"""Of one file, which is one epoch."""
KILLED_AT = tuple(Failpoint) if FULL else (Failpoint.COMMIT_LANDED,)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(versitygw(tmp_path_factory.mktemp("versitygw")))
        except GoUnavailableError as error:
            pytest.skip(str(error))
        yield server


def probed(server: S3Server, uri: str, options: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    """Return what the doctor's write probe says."""
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options))
    ran = typed("doctor", uri, "--write-probe", "--storage-options-file", path, "-o", "json")
    [found] = [d for d in ran.document["diagnoses"] if d["name"] == "conditional writes"]
    return dict(found)


def test_the_probe_leaves_nothing_behind(server: S3Server, tmp_path: Path) -> None:
    uri = server.uri("probed/orders.lance")
    found = probed(server, uri, server.options(), tmp_path)
    assert (found["level"], found["advice"]) == ("ok", "")
    assert open_files(server.uri("probed"), server.options()).paths() == []


@pytest.mark.parametrize(("readable", "level"), [(True, "warning"), (False, "unknown")])
def test_the_probe_says_what_it_was_not_allowed_to_remove(
    server: S3Server, tmp_path: Path, readable: bool, level: str
) -> None:
    """Without the right to read, the probe fails after it has written; that is left, too."""
    room = f"refused-{readable}"
    uri = server.uri(f"{room}/orders.lance")
    lance.write_dataset(rows(0, 10), uri, storage_options=server.options())
    let_guest(server, "s3:PutObject", *(["s3:GetObject"] * readable))
    found = probed(server, uri, server.options(aws_access_key_id=GUEST), tmp_path)
    files = open_files(server.uri(room), server.options())
    left = [path for path in files.paths() if not path.startswith("orders.lance/")]
    [folder] = {path.split("/")[0] for path in left}
    assert found["level"] == level
    assert f"{len(left)} files of the probe are still there" in found["advice"]
    assert found["advice"].endswith(f"remove {server.uri(room)}/{folder} by hand")


def let_guest(server: S3Server, *actions: str) -> None:
    """Let the guest do this with all objects, and list the bucket."""
    import boto3

    def allow(what: list[str], resource: str) -> dict[str, Any]:
        whom = {"AWS": [GUEST]}
        return {"Effect": "Allow", "Principal": whom, "Action": what, "Resource": resource}

    bucket = f"arn:aws:s3:::{server.bucket}"
    statements = [allow([*actions], f"{bucket}/*"), allow(["s3:ListBucket"], bucket)]
    boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=USER,
        aws_secret_access_key=SECRET,
        region_name=REGION,
    ).put_bucket_policy(
        Bucket=server.bucket,
        Policy=json.dumps({"Version": "2012-10-17", "Statement": statements}),
    )


def test_drivers_that_steal_a_query_from_each_other_write_each_epoch_once(
    server: S3Server, tmp_path: Path
) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
    (tmp_path / "checkpoint/metadata").write_text(json.dumps({"id": CHECKPOINT_ID}))
    store = {"uri": server.uri("contested.lance"), "storage": server.options()}
    world = lance_world(server.uri("contested.lance"), storage=server.options())
    program = ("-m", "tests.support.contender", str(tmp_path), str(RACE), "on")
    drivers = [python(*program, str(seed), json.dumps(store)) for seed in range(2)]
    try:
        ended = [finish(driver) for driver in drivers]
    finally:
        for driver in drivers:
            end(driver)
    assert [status for status, _ in ended] == [0, 0], ended
    assert sum(output.count("FencedError:") for _, output in ended) > 0, "they really met"
    ids = Counter(row["id"] for row in world.rows())
    assert ids == Counter(row["id"] for n in range(RACE) for row in epoch_rows(n))


# -------------------------------------------------------------- dataset and checkpoint on the store


class Remote(Stream):
    """A stream whose dataset and checkpoint are on the server; its source is on disk."""

    def __init__(self, server: S3Server, root: Path, name: str) -> None:
        super().__init__(None, root)  # type: ignore[arg-type]
        self.server, self.name, self.epochs = server, name, 0

    @property
    def uri(self) -> str:
        return self.server.uri(f"{self.name}/orders.lance")

    @property
    def checkpoint(self) -> str:
        return f"s3a://{self.server.bucket}/{self.name}/checkpoint"

    def more(self, epochs: int) -> None:
        for _ in range(epochs):
            self.add(orders(self.epochs * ROWS, ROWS))
            self.epochs += 1

    def start(self, what: str, step: str, occurrence: int) -> subprocess.Popen[str]:
        """Start the job in a process of its own that dies or hangs at a step."""
        launch = f"{what}-{step}-{occurrence}"
        sink = {"storageOptions": self.server.options()}
        path = write_spec(self.root / f"{launch}.json", spec(self, launch, sink=sink))
        return python(
            *("-m", "tests.support.recovery_driver", str(path), what, step, str(occurrence)),
            environment=s3a_environment(self.server),
        )

    def let_go(self, what: str, step: str, occurrence: int) -> None:
        (self.root / f"{what}-{step}-{occurrence}.json.go").touch()

    def expect_exactly_once(self) -> None:
        port = open_dataset(self.uri, self.server.options())
        ids = port.dataset.to_table(columns=["id"]).column("id").to_pylist()
        assert Counter(ids) == Counter(range(self.epochs * ROWS))
        expect_clean(check(port, storage_options=self.server.options()))


def s3a_environment(server: S3Server) -> dict[str, str]:
    """Return variables with which Spark finds S3A and the server, as its own settings would."""
    hadoop = next(Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")).stem
    try:
        jars = fetched_jars(
            "org.apache.hadoop",
            f"hadoop-aws:{hadoop.rpartition('-')[2]}",
            without=["software.amazon.awssdk:bundle"],
            beside=[f"software.amazon.awssdk:{each}" for each in AMAZONS],
        )
    except JarsUnavailableError as error:
        pytest.skip(str(error))
    conf = {
        "endpoint": server.endpoint,
        "endpoint.region": REGION,
        "path.style.access": "true",
    }
    settings = [f"--conf spark.hadoop.fs.s3a.{name}={value}" for name, value in conf.items()]
    files = ",".join(map(str, sorted(jars.glob("*.jar"))))
    return {
        "PYSPARK_SUBMIT_ARGS": " ".join(["--jars", files, *settings, "pyspark-shell"]),
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


AMAZONS = ("s3-transfer-manager:2.35.4", "sts:2.35.4")
"""What S3A uses of Amazon's SDK: 20 MB, where its bundle has 690."""


@pytest.fixture
def stream(server: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Remote:
    return Remote(server, tmp_path, f"stream-{abs(hash(request.node.name))}")


def token(port: LanceDatasetPort) -> int:
    owner = decode_query(port.config, "q", port.version).owner
    return owner.token if owner else 0


NEVER = ("kill", Failpoint.RELEASE_DONE.value, 99)


@pytest.mark.parametrize("step", KILLED_AT)
def test_a_killed_driver_and_one_that_hangs_beside_its_successor(
    stream: Remote, step: Failpoint
) -> None:
    stream.more(3)
    claims = step.value.startswith(("claim", "release"))
    status, output = finish(stream.start("kill", step.value, 1 if claims else 2))
    assert status == -9, output
    stream.more(2)
    hangs = ("hang", Failpoint.COMMIT_CHECKED.value, 1)
    late = stream.start(*hangs)
    try:
        port = open_dataset(stream.uri, stream.server.options())
        wait_for("the late driver", lambda: token(port.latest()) > token(port))
        status, output = finish(stream.start(*NEVER))
        assert status == 0, output
        assert exact_watermark(port.latest(), "q").epoch == 4
        stream.let_go(*hangs)
        _, output = finish(late)
        assert "FencedError" in output
    finally:
        end(late)
    stream.expect_exactly_once()
