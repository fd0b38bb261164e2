"""What a Python worker's trace says of a user's function."""

from __future__ import annotations

import pytest

from airflow_provider_lance.exceptions import RowsRefusedError, SpecError, UserFunctionError
from airflow_provider_lance.spark.failures import named_by_worker, users_failure

SPARK = (
    "An exception was thrown from the Python worker:\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1, in main\n'
    "    process()\n"
    "    ^^^^^^^^^\n"
)
USERS = '  File "/opt/pyspark/jobs/prices.py", line 3, in price\n    raise ValueError(value)\n'


def test_traceback_of_a_user_function_keeps_the_users_lines_only() -> None:
    failure = users_failure(f"{SPARK}{USERS}ValueError: no\nprice SQLSTATE: 38000\n")
    assert isinstance(failure, UserFunctionError)
    assert str(failure).endswith(
        "raised ValueError: no\nprice\n"
        f"Traceback (most recent call last):\n{USERS}ValueError: no\nprice"
    )


def test_traceback_of_a_user_function_keeps_its_cause() -> None:
    also = "\nDuring handling of the above exception, another exception occurred:\n\n"
    trace = f"{SPARK}{USERS}KeyError: 1{also}Traceback (most recent call last):\n{USERS}"
    failure = users_failure(f"{trace}prices.NoPriceError: none\n")
    assert "raised prices.NoPriceError: no" in str(failure)
    assert "KeyError: 1" in str(failure)


@pytest.mark.parametrize(
    "name", ["TimeoutError", "ConnectionResetError", "requests.exceptions.ConnectTimeout"]
)
def test_transient_exception_of_a_user_function_is_no_user_error(name: str) -> None:
    assert users_failure(f"{SPARK}{USERS}{name}: x\n") is None


def test_a_module_that_spark_itself_lacks_is_no_fault_of_the_function() -> None:
    missing = "ModuleNotFoundError: No module named 'pandas'"
    failure = users_failure(f"{SPARK}{missing}\n")
    assert isinstance(failure, SpecError)
    assert str(failure).startswith(missing)
    assert "PYSPARK_PYTHON" in str(failure)
    assert isinstance(users_failure(f"{SPARK}{USERS}{missing}\n"), UserFunctionError)


def test_a_huge_message_is_cut_in_its_middle() -> None:
    said = str(users_failure(f"{SPARK}{USERS}ValueError: {'x' * 1_000_000}\n"))
    assert len(said) < 21_000
    assert "ValueError" in said[:100]


def test_an_error_of_this_package_keeps_its_class() -> None:
    ours = "airflow_provider_lance.exceptions.RowsRefusedError: no"
    assert isinstance(named_by_worker(f"{SPARK}{ours}\n"), RowsRefusedError)
    assert named_by_worker(f"{SPARK}ValueError: no\n") is None
