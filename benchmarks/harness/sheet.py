"""The figures of one experiment, and the two files that hold those of all."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import about

Label = str | int | float


@dataclass(frozen=True)
class Figure:
    """One number: what it is of, its unit, and labels that tell it from its like."""

    figure: str
    value: float
    unit: str
    labels: Mapping[str, Label]


@dataclass(frozen=True)
class Claim:
    """One sentence that a number must bear out: at most its limit, or at least."""

    claim: str
    value: float
    limit: float
    atleast: bool = False

    @property
    def holds(self) -> bool:
        """Tell whether the number does."""
        return self.value >= self.limit if self.atleast else self.value <= self.limit

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Claim:
        """Return a claim of raw results."""
        return cls(told["claim"], told["value"], told["limit"], told.get("atleast", False))

    def to_json(self) -> dict[str, Any]:
        """Return the claim as raw results have it."""
        return {**asdict(self), "holds": self.holds}


class Sheet:
    """What one experiment found."""

    def __init__(self, name: str, title: str, settings: Mapping[str, Any]) -> None:
        """Start an empty sheet.

        :param settings: what was run, as JSON carries it.
        """
        self.name, self.title, self.settings = name, title, dict(settings)
        self.seconds = 0.0
        self.figures: list[Figure] = []
        self.claims: list[Claim] = []
        self.plots: list[str] = []
        """Names of plots that were written, without ``.png`` or ``.svg``."""

    def add(self, figure: str, value: float, unit: str, **labels: Label) -> None:
        """Note one figure; a time is worth little without a ratio beside it."""
        self.figures.append(Figure(figure, _rounded(value), unit, labels))

    def ratio(self, figure: str, *, of: str, to: str, value: float, **labels: Label) -> None:
        """Note how many times the second contestant's figure the first one's is."""
        self.add(figure, value, "ratio", of=of, to=to, **labels)

    def claim(self, claim: str, *, value: float, limit: float, atleast: bool = False) -> None:
        """Note a claim: the value is at most the limit, or with ``atleast`` no less than it.

        Never raises; the table at the end of the run shows which claims hold.
        """
        self.claims.append(Claim(claim, _rounded(value), limit, atleast))

    def to_json(self) -> dict[str, Any]:
        """Return the sheet as the results file has it; ratios come first."""
        return {
            "name": self.name,
            "title": self.title,
            "settings": self.settings,
            "seconds": round(self.seconds, 1),
            "figures": [
                {"figure": each.figure, "value": each.value, "unit": each.unit, **each.labels}
                for each in self._ordered()
            ],
            "claims": [each.to_json() for each in self.claims],
            "plots": self.plots,
        }

    def rows(self) -> list[tuple[str, str, float, str, str]]:
        """Return the figures as lines of the table: experiment, figure, value, unit, labels."""
        return [
            (
                self.name,
                each.figure,
                each.value,
                each.unit,
                ";".join(f"{name}={value}" for name, value in each.labels.items()),
            )
            for each in self._ordered()
        ]

    def _ordered(self) -> list[Figure]:
        return sorted(self.figures, key=lambda each: each.unit != "ratio")


def write(sheets: Sequence[Sheet], folder: Path, run: Mapping[str, Any]) -> None:
    """Write ``results.json`` and ``results.csv``.

    :param run: machine, versions, commit and whatever else is true of the whole run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = {**run, "experiments": [sheet.to_json() for sheet in sheets]}
    (folder / "results.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("experiment", "figure", "value", "unit", "labels"))
        for sheet in sheets:
            writer.writerows(sheet.rows())


def study(
    name: str, settings: Mapping[str, Any], claims: Iterable[Claim], told: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a study of one question prints, in the shape that can be published."""
    return {
        "name": name,
        **about(Path(tempfile.gettempdir())),
        "settings": settings,
        "claims": [each.to_json() for each in claims],
        "figures": told,
    }


def _rounded(value: float) -> float:
    """Keep four digits; counts stay as they are."""
    return value if isinstance(value, int) else float(f"{value:.4g}")
