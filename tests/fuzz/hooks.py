"""What schemathesis is told beyond its configuration, and a line per answer for the report."""

import base64
import itertools
import json
import os
from collections import defaultdict
from typing import Any

import schemathesis
from hypothesis import strategies as st

# chat → its run, of what was there at the start.
_RUNS: dict[str, str] = json.loads(os.environ["FUZZ_RUNS"])
_turns: "defaultdict[str, itertools.count[int]]" = defaultdict(itertools.count)

# Cursors that any list takes, and ids that an event of a first epoch may have.
schemathesis.openapi.format(
    "cursor", st.integers(1, 40).map(lambda offset: base64.b64encode(f"o={offset}".encode()).decode())
)
schemathesis.openapi.format("event-id", st.builds("{}-{}".format, st.integers(0, 1), st.integers(0, 50)))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Send what a schema has no words for, every other time: `Accept`, and ids that belong together."""
    if next(_turns[case.operation.label]) % 2:
        return
    if case.operation.label == "POST /api/v1/chats/{chat_id}/messages" and case.method == "POST":
        # The answer as the stream of its run.
        case.headers["Accept"] = "text/event-stream"
    if {"chat_id", "run_id"} <= set(case.path_parameters or ()):
        chat, run = case.path_parameters["chat_id"], case.path_parameters["run_id"]
        if chat in _RUNS and run in _RUNS.values():
            case.path_parameters["run_id"] = _RUNS[chat]


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Let pass what no schema can tell: whether a pool exists, and what its model's window and limits take."""
    if type(failure).__name__ != "RejectedPositiveData":
        return True
    problem = response.json()
    depends_on_a_pool = set(problem.get("errors", ())) == {"max_output_tokens"}
    return problem["code"] not in ("unknown_pool", "too_long") and not depends_on_a_pool


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    kind = response.headers.get("content-type", [""])[0].partition(";")[0]
    line = {"operation": case.operation.label, "status": response.status_code, "kind": kind}
    with open(os.environ["FUZZ_ANSWERS"], "a") as answers:
        print(json.dumps(line), file=answers)
