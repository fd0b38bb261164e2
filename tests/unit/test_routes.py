"""From a route's value to its dataset: names that never meet, options that fit together."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_lance.exceptions import RowsRefusedError, SpecError
from airflow_provider_lance.spec.routes import route_segment
from airflow_provider_lance.spec.sink_options import SinkOptions

REQUIRED = {"uri": "/lake/orders.lance", "queryId": "q", "checkpointLocation": "/checkpoints/q"}
VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def options(**given: Any) -> SinkOptions:
    return SinkOptions.parse({**REQUIRED, **given})


@pytest.mark.parametrize(
    ("value", "segment"),
    [
        ("acme", "acme"),
        ("2026-11-22", "2026-11-22"),
        ("US", "=u=s"),
        ("us", "us"),
        ("a b", "a=020b"),
        ("../etc", "=02e=02e=02fetc"),
        ("=u", "=03du"),
        ("é", "=0c3=0a9"),
        ("-1", "-1"),
    ],
)
def test_value_becomes_one_safe_segment(value: str, segment: str) -> None:
    assert route_segment(value) == segment


@given(VALUES, VALUES)
def test_two_values_share_no_segment_on_any_file_system(one: str, other: str) -> None:
    try:
        first, second = route_segment(one), route_segment(other)
    except RowsRefusedError:
        return
    assert re.fullmatch(r"[a-z0-9=_-]+", first)
    assert (first.lower() == second.lower()) == (one == other)


@pytest.mark.parametrize(("value", "message"), [("", "is empty"), ("x" * 201, "too long")])
def test_value_that_names_no_folder_is_refused(value: str, message: str) -> None:
    with pytest.raises(RowsRefusedError, match=message):
        route_segment(value)


def test_routes_lie_beside_the_home_or_where_the_template_says() -> None:
    beside = options(routeBy="tenant")
    assert beside.route_uri_of("route.acme") == "/lake/orders.routes/acme.lance"
    elsewhere = options(routeBy="tenant", routeUri="s3://lake/tenants/{route}-orders.lance")
    assert elsewhere.side_uri("route.acme") == "s3://lake/tenants/acme-orders.lance"
    assert elsewhere.side_uri("quarantine") is None
    assert options().side_uri("route.acme") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"routeUri": "/lake/{route}.lance"}, r"\['routeUri'\] belong to routeBy"),
        ({"maxRoutes": 5}, r"\['maxRoutes'\] belong to routeBy"),
        ({"routeBy": "t", "outputMode": "complete"}, "append or update"),
        ({"routeBy": "t", "schemaEvolution": "addColumns"}, "do not go with routeBy"),
        ({"routeBy": "t", "missingColumns": "null"}, "do not go with routeBy"),
        ({"routeBy": "t", "routeUri": "/lake/x.lance"}, "routeUri must be a URI with {route} once"),
        ({"routeBy": "t", "routeUri": "/lake/{route}/x"}, "after the last"),
        ({"routeBy": "t", "routeUri": "/lake/{route}{route}"}, "after the last"),
        ({"routeBy": "t", "routeUri": "lake/{route}"}, "absolute path"),
        ({"routeBy": "t", "routeUri": "/lake/orders.lance/{route}"}, "lie in"),
        ({"routeBy": "t", "routeUri": "/checkpoints/q/{route}"}, "lie in"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        options(**given)


def test_division_changes_with_what_decides_it_and_with_nothing_else() -> None:
    plain = options(routeBy="tenant")
    assert plain.division == options(routeBy="tenant", maxRoutes=5, watermarkEvery=3).division
    assert plain.division != options(routeBy="region").division
    assert plain.division != options(routeBy="tenant", routeUri="/lake/t/{route}").division


def test_options_read_what_they_write() -> None:
    for each in (options(), options(routeBy="tenant"), options(routeBy="tenant", maxRoutes=5)):
        assert SinkOptions.parse(each.to_json()) == each
