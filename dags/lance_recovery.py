"""Check the streams of a list of tables every hour, repair what is safe, ask about the rest.

`lance_recovery` fails for a table with a finding that needs a person; the error says what is wrong
and what to type. For each question that only a person can answer, it starts
`lance_recovery_approval` once, which asks in Airflow ("Required Actions"), waits for the answer and
acts on it. Needs a Lance connection `lance_default` with a base URI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLBranchOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Param, dag, task

from airflow_provider_lance.operators.recovery import LanceRecoveryCheckOperator

APPROVAL = "lance_recovery_approval"


@task
def tables(params: Any = None) -> list[str]:
    """Return the tables to check; each becomes a mapped task of its own."""
    return list(params["tables"])


# [START lance_recovery_questions]
@task(trigger_rule="all_done")
def find_questions(reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a run of the approval DAG for each question that only a person can answer."""
    questions: dict[tuple[str, str], dict[str, Any]] = {}
    for report in reports:
        tokens = {each["queryId"]: each["token"] for each in report["statuses"]}
        for finding in report["findings"]:
            evidence, query = finding["evidence"], finding["queryId"]
            match finding["code"]:
                case "LS205" if "ifCommitted" in evidence:  # an epoch is in doubt
                    what, epoch = "resolve_gap", evidence["inDoubt"]
                case "LS102" if evidence.get("proven") is False:  # probably dead, not proven
                    what, epoch = "release", evidence["watermark"]
                case _:
                    continue
            asked = f"{report['uri']}:{query}:{what}:{epoch}:{tokens[query]}"
            question = {
                # The id makes Airflow ask the same question only once.
                "trigger_run_id": re.sub(r"[^A-Za-z0-9_.~:+-]+", "-", asked)[-240:],
                "conf": {
                    "uri": report["uri"],
                    "query_id": query,
                    "what": what,
                    "epoch": epoch,
                    "after_version": evidence.get("foldedVersion", 0),
                    "seen": finding["summary"],
                },
            }
            # Answering for an epoch also releases the query.
            if what == "resolve_gap" or (report["uri"], query) not in questions:
                questions[report["uri"], query] = question
    return list(questions.values())


# [END lance_recovery_questions]


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["lance", "example"],
    params={
        "tables": Param(
            ["orders.lance", "payments.lance"], type="array", description="Tables to check"
        )
    },
    doc_md=__doc__,
)
def lance_recovery() -> None:
    """Check, repair and ask."""
    # [START lance_recovery_check]
    check = LanceRecoveryCheckOperator.partial(
        task_id="check",
        repair=["watermark", "owner"],
        fail_on="error",
        tolerance={"stall": timedelta(minutes=15), "versions": 10_000},
        map_index_template="{{ task.uri }}",
    ).expand(uri=tables())
    # [END lance_recovery_check]

    TriggerDagRunOperator.partial(
        task_id="ask", trigger_dag_id=APPROVAL, skip_when_already_exists=True
    ).expand_kwargs(find_questions(check.output))

    # Makes the run fail if a check fails.
    check >> EmptyOperator(task_id="healthy")


@dag(
    dag_id=APPROVAL,
    schedule=None,
    catchup=False,
    tags=["lance", "example"],
    params={
        "uri": Param(type="string"),
        "query_id": Param(type="string"),
        "what": Param(enum=["resolve_gap", "release"]),
        "epoch": Param(type="integer", description="The epoch that the decision is about"),
        "after_version": Param(
            0, type="integer", description="Versions after this one are missing"
        ),
        "seen": Param("", type="string", description="What the check saw"),
    },
    doc_md=__doc__,
)
def lance_recovery_approval() -> None:
    """Ask one question and act on the answer."""

    @task.branch
    def which(params: Any = None) -> str:
        return {"resolve_gap": "ask_gap", "release": "ask_release"}[params["what"]]

    # [START lance_recovery_approval]
    stream = {
        "uri": "{{ params.uri }}",
        "query_ids": ["{{ params.query_id }}"],
        "fail_on": "critical",  # the stream is still to be started
    }
    # The epoch makes an answer that comes too late fail without a change.
    said = {"epoch": "{{ params.epoch }}", "proven_dead": True}
    gap = said | {"after_version": "{{ params.after_version }}"}

    ask_gap = HITLBranchOperator(
        task_id="ask_gap",
        subject="Is epoch {{ params.epoch }} of {{ params.query_id }} in the dataset?",
        body="{{ params.seen }}\n\nCheck whether its rows are in {{ params.uri }}: either all of "
        "them are, or none. Make sure that no driver of this query runs.",
        options=["The rows are there", "The rows are missing", "I see to it myself"],
        options_mapping={
            "The rows are there": "committed",
            "The rows are missing": "missing",
            "I see to it myself": "leave",
        },
    )
    ask_gap >> [
        LanceRecoveryCheckOperator(
            task_id="committed", resolve_gap={**gap, "landed": True}, **stream
        ),
        LanceRecoveryCheckOperator(
            task_id="missing", resolve_gap={**gap, "landed": False}, **stream
        ),
        EmptyOperator(task_id="leave"),
    ]

    ask_release = ApprovalOperator(
        task_id="ask_release",
        subject="Is the driver of {{ params.query_id }} dead? Approve to release the query",
        body="{{ params.seen }}\n\nApprove only if you have checked, on its host or in its "
        "cluster, that this driver does not run.",
    )
    ask_release >> LanceRecoveryCheckOperator(task_id="release", release=said, **stream)
    # [END lance_recovery_approval]

    which() >> [ask_gap, ask_release]


lance_recovery()
lance_recovery_approval()
