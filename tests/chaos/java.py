"""JVMs that start fast: drivers here live for seconds, and there are hundreds of them."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.life import Manner
from tests.chaos.plan import Mode, StationPlan, Store
from tests.chaos.scene import Scene
from tests.chaos.store import place
from tests.support import class_archive
from tests.support.processes import QUICK_JAVA

LONGEST_SECONDS = 90.0


def archive(folder: Path) -> str:
    """Return a JVM's options with an archive of loaded classes: the tests' one, or a new one.

    One driver is run to leave it. It halves the processor time of a driver's JVM. Without the
    archive all is the same, only slower: a JVM that cannot make or use one goes on without.
    """
    if class_archive.FILE.exists():
        return _with(class_archive.FILE)
    file = folder / "classes.jsa"
    plan = StationPlan(
        "warm-up", 0, Mode.COMPLETE, Store.DISK, {"outputMode": "complete"}, False, ()
    )
    home = folder / "warm-up"
    home.mkdir(parents=True)
    with place(plan, home, None) as where:
        scene = Scene(plan, home, where, java=f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={file}")
        scene.source.add(2)
        life = scene.driver()
        try:
            life.until_gone(LONGEST_SECONDS)
            end = life.end()
        finally:
            scene.clear()
    assert end.manner is Manner.FINISHED, end
    return _with(file) if file.exists() else QUICK_JAVA


def _with(file: Path) -> str:
    return f"{QUICK_JAVA} -XX:SharedArchiveFile={file} -Xlog:cds=off -Xlog:cds+dynamic=off"
