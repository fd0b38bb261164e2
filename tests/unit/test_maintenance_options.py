from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_lance.exceptions import SpecError
from airflow_provider_lance.maintenance.options import (
    MaintenanceOptions,
    MaintenanceSpec,
    Step,
)

parse = MaintenanceOptions.parse


def test_default_options_run_all_steps_in_order_and_keep_a_week() -> None:
    options = parse({})
    assert options == MaintenanceOptions()
    assert options.steps == (Step.COMPACT, Step.INDEX, Step.CLEANUP)
    assert options.older_than == 7 * 24 * 3600
    assert options.target_rows({}) == 1024 * 1024
    assert not options.dry_run


def test_steps_run_in_their_own_order_however_they_are_written() -> None:
    assert parse({"steps": ["cleanup", "compact"]}).steps == (Step.COMPACT, Step.CLEANUP)


@pytest.mark.parametrize(
    "steps", [[], "compact", ["compact", "compact"], ["vacuum"], [None], {"compact": 1}, 3]
)
def test_steps_of_the_wrong_form_are_refused_with_what_was_seen(steps: Any) -> None:
    with pytest.raises(SpecError) as caught:
        parse({"steps": steps})
    assert repr(steps) in str(caught.value)
    assert "'compact', 'index' and 'cleanup'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deadline", 0),
        ("deadline", "soon"),
        ("deadline", True),
        ("minSmallFragments", -1),
        ("minUncoveredRows", 1.5),
        ("minOldVersions", "many"),
        ("olderThan", -1),
        ("retainVersions", 0),
        ("deleteRateLimit", 0),
        ("deleteUnverified", "perhaps"),
        ("dryRun", 1),
        ("compaction", ["target_rows_per_fragment"]),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SpecError) as caught:
        parse({name: value})
    assert f"{name} must be" in str(caught.value)
    assert repr(value) in str(caught.value)


def test_an_unknown_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(SpecError, match=r"unknown \['older_than'\].*'olderThan'"):
        parse({"older_than": 3})


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"target_rows": 5}, "unknown ['target_rows']"),
        ({"target_rows_per_fragment": 0}, "target_rows_per_fragment is"),
        ({"max_source_fragments": -3}, "max_source_fragments is"),
        ({"num_threads": "all"}, "num_threads is"),
    ],
)
def test_compaction_options_are_pylances_own(given: dict[str, Any], seen: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse({"compaction": given})
    assert seen in str(caught.value)
    assert repr(given) in str(caught.value)


def test_numbers_as_text_become_numbers_for_templates_render_text() -> None:
    options = parse(
        {
            "olderThan": "60",
            "dryRun": "true",
            "compaction": {"target_rows_per_fragment": "100", "batch_size": "64"},
        }
    )
    assert (options.older_than, options.dry_run, options.target_rows({})) == (60, True, 100)
    assert options.compaction == {"target_rows_per_fragment": 100, "batch_size": 64}


@pytest.mark.parametrize(
    ("steps", "given"),
    [
        (["index"], {"compaction": {"num_threads": 1}}),
        (["cleanup"], {"minSmallFragments": 3}),
        (["compact"], {"minUncoveredRows": 3}),
        (["compact"], {"olderThan": 60}),
        (["compact"], {"olderThan": 0}),
        (["compact"], {"retainVersions": 3}),
        (["index"], {"deleteUnverified": True}),
        (["index"], {"deleteRateLimit": 3, "minOldVersions": 3}),
    ],
)
def test_an_option_of_a_step_that_does_not_run_contradicts(
    steps: list[str], given: dict[str, Any]
) -> None:
    with pytest.raises(SpecError) as caught:
        parse({"steps": steps, **given})
    assert str(sorted(given)) in str(caught.value)
    assert str(steps) in str(caught.value)


@pytest.mark.parametrize(
    ("said", "setting", "rows"),
    [(None, None, 1024 * 1024), (None, "50", 50), (9, "50", 9), (None, "many", 1024 * 1024)],
)
def test_what_counts_as_small_is_said_here_or_by_the_dataset(
    said: int | None, setting: str | None, rows: int
) -> None:
    options = parse({"compaction": {"target_rows_per_fragment": said} if said else {}})
    config = {"lance.compaction.target_rows_per_fragment": setting} if setting else {}
    assert options.target_rows(config) == rows


def test_an_option_that_is_not_set_contradicts_nothing() -> None:
    parse(
        {
            "steps": ["compact"],
            "olderThan": None,
            "deleteUnverified": False,
            "retainVersions": None,
        }
    )
    parse({"steps": ["cleanup"], "compaction": {}})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"steps": ["compact"]},
        {"steps": ["index"], "minUncoveredRows": 7},
        {"steps": ["cleanup"], "olderThan": 0, "retainVersions": 2, "deleteRateLimit": 9},
        {"compaction": {"defer_index_remap": True, "num_threads": 1}, "dryRun": True},
        {"deleteUnverified": True, "deadline": 5, "minSmallFragments": 0, "minOldVersions": 0},
    ],
)
def test_a_specification_says_the_same_after_its_way_through_json(given: dict[str, Any]) -> None:
    spec = MaintenanceSpec(uri="/data/t.lance", storage_options={"a": "b"}, options=parse(given))
    assert MaintenanceSpec.loads(spec.dumps()) == spec


def test_a_specification_keeps_its_secrets_to_itself() -> None:
    spec = MaintenanceSpec(uri="/data/t.lance", storage_options={"secret_access_key": "s3cr3t"})
    assert "s3cr3t" not in repr(spec)
    with pytest.raises(SpecError) as caught:
        MaintenanceSpec.loads('{"uri": "/x", "storageOptions": {"secret_access_key": ["s3cr3t"]}}')
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("{", "not JSON"),
        ("[]", "expected a mapping"),
        ("{}", "uri is missing"),
        ('{"uri": "t.lance"}', "uri must be .*'t.lance'"),
        ('{"uri": "/t.lance", "options": {"steps": ["vacuum"]}}', "vacuum"),
        ('{"uri": "/t.lance", "mode": 1}', r"unknown \['mode'\]"),
    ],
)
def test_a_specification_that_cannot_be_read_says_why(text: str, seen: str) -> None:
    with pytest.raises(SpecError, match=seen):
        MaintenanceSpec.loads(text)
