"""What the page of troubles says after a restore, typed as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.exceptions import DatasetRestoredError
from airflow_provider_lance.protocol.commit_policy import CommitPolicy, OnRestore
from airflow_provider_lance.protocol.decision import Decision
from tests.support.cli import typed
from tests.support.drivers import QUICK
from tests.support.repairing import CheckpointDriver, Scene, lance_scene

PAGE = Path(__file__).parents[2] / "docs/how-to/trouble.md"


def blocks(heading: str, language: str = "python") -> list[str]:
    """Return the code of one section, as text without its indentation."""
    section = re.split(r"\n##+ ", PAGE.read_text().split(f"# {heading}\n")[1])[0]
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return lance_scene(tmp_path)


def restore_over(scene: Scene, epochs: int) -> str:
    """Restore the version from before so many epochs; return what the next start says."""
    driver = CheckpointDriver(scene)
    driver.step(epochs=2)
    before: Any = scene.world.open()
    driver.step(epochs)
    before.dataset.checkout_version(before.version).restore()
    with pytest.raises(DatasetRestoredError, match=f"epochs 2 to {1 + epochs}") as caught:
        CheckpointDriver(scene)
    return str(caught.value)


def test_rows_removed_by_a_restore_come_back_with_the_pages_commands(scene: Scene) -> None:
    said = restore_over(scene, 2)
    by = int(re.findall(r"version (\d+) of", said)[0])
    bring_back = blocks("DatasetRestoredError", "bash")[0].splitlines()[0]
    words = [scene.world.open().uri if "/data/" in word else word for word in bring_back.split()]
    ran = typed(*words[1:], "--proven-dead")
    assert ran.status == 0, ran.err
    assert f"with version {by - 1}: {' '.join(words)}" in said
    assert CheckpointDriver(scene).step().decision is Decision.FULL_COMMIT
    assert scene.epochs() == [epoch for epoch in range(5) for _ in range(3)]


def test_stream_continues_without_rows_removed_by_a_restore_with_the_pages_commands(
    scene: Scene,
) -> None:
    said = restore_over(scene, 2)
    (accept,) = blocks("DatasetRestoredError")
    names: dict[str, Any] = {}
    exec(accept, names)
    answer = names["sink_options"]["onRestore"].replace("38-41", "2-3")
    assert f"onRestore={answer}" in said
    policy = CommitPolicy(backoff=QUICK, on_restore=OnRestore.parse(answer))
    assert CheckpointDriver(scene, policy=policy).step().decision is Decision.FULL_COMMIT
    assert CheckpointDriver(scene).step().decision is Decision.FULL_COMMIT
    assert scene.epochs() == [epoch for epoch in (0, 1, 4, 5) for _ in range(3)]
