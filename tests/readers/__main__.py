"""Readers: what the sink wrote, read by other tools: `python -m tests.readers [TOOL ...]`.

It makes an environment with the tools by uv, which takes a gigabyte while it runs. Exit status: 0
every tool has read every value; 1 some have not, and the table says which.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import local_session
from tests.readers import read
from tests.readers.compare import Answer, compared
from tests.readers.spark import with_spark
from tests.readers.written import Written, write

UV = Path(__file__).parents[2] / ".tools/uv/bin/uv"
SECONDS = 300
PACKAGES = {"daft": ["daft[lance]"], "ray": ["ray[data]"]}
"""What a tool needs to read Lance, if it is not only the package of its name."""


def main() -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers", description=__doc__)
    names = [*read.TOOLS, "spark"]
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of {', '.join(names)}")
    chosen = parser.parse_args().tools or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    session = local_session()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        written = write(session, folder / "data")
        answers: list[Answer] = []
        if "spark" in chosen:
            for stage, uri in written.uris.items():
                said = with_spark(session, uri, folder / "read" / stage)
                answers.append(_shown(compared("spark", stage, said, written)))
        session.stop()
        for tool in (each for each in names if each in chosen and each != "spark"):
            answers += _with(tool, folder / tool, written)
    return 1 if any(each.wrong for each in answers) else 0


def _with(tool: str, folder: Path, written: Written) -> list[Answer]:
    """Read all stages in an environment of the tool's own."""
    uv = str(UV) if UV.exists() else str(shutil.which("uv"))
    python = folder / "bin/python"
    pylance = f"pylance=={lance_version()}"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
    packages = [pylance, *PACKAGES.get(tool, [tool])]
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
    answers = []
    for stage, uri in written.uris.items():
        ran = subprocess.run(
            [python, read.__file__, tool, uri],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": ""},
        )
        if ran.returncode:
            last = ran.stderr.strip().splitlines()[-1]
            answers.append(_shown(Answer(tool, "?", stage, 0, {"everything": last})))
        else:
            said = json.loads(ran.stdout.splitlines()[-1])
            answers.append(_shown(compared(tool, stage, said, written)))
    shutil.rmtree(folder)
    return answers


def lance_version() -> str:
    from importlib.metadata import version

    return version("pylance")


def _shown(answer: Answer) -> Answer:
    agreed = answer.columns - len(answer.wrong)
    said = f"{agreed} of {answer.columns} columns"
    print(f"{answer.tool:10}{answer.version:10}{answer.stage:12}{said}", flush=True)
    for what in sorted(set(answer.wrong.values())):
        names = [name for name, found in answer.wrong.items() if found == what]
        print(f"    {', '.join(names)}: {what}", flush=True)
    return answer


if __name__ == "__main__":
    sys.exit(main())
