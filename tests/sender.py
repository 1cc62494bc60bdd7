"""A process that accepts turns as a web process does, and says what each took: CPU, and queries.

A line of JSON in (`chat`, `content`, `turn`) for each turn, a line out (`run`, `cpu_ms`, `queries`). Run with a site's
environment: `python -m tests.sender EMAIL`.
"""

import json
import sys
import time
from typing import Any
from uuid import UUID

import django


def main(email: str) -> None:
    django.setup()
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.utils import timezone

    from conversations import turns

    owner_id = get_user_model().objects.values_list("pk", flat=True).get(email=email)
    queries = 0

    def count(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        nonlocal queries
        queries += 1
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        for line in sys.stdin:
            asked = json.loads(line)
            queries = 0
            began = time.thread_time()
            begun = turns.begin(
                owner_id=owner_id,
                chat_id=UUID(asked["chat"]),
                content=asked["content"],
                client_turn_id=asked["turn"],
                pool=None,
                max_output_tokens=None,
                now=timezone.now(),
            )
            took = 1000 * (time.thread_time() - began)
            print(json.dumps({"run": str(begun.run.id), "cpu_ms": took, "queries": queries}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
