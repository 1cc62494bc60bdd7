"""What an answer must be, whatever was asked."""

from collections.abc import Iterator

from chatsite import problems
from chatsite.problem_codes import CODES
from tests.walk.routes import Route
from tests.walk.site import Answer

# Asked whether the site can answer a message, a probe may say no.
MAY_BE_UNREADY = ("readyz",)
MEMBERS = {"type", "title", "status", "detail", "code"}


def complaints(answer: Answer, route: Route, method: str) -> Iterator[str]:
    """What is wrong with an answer: nothing, most of the time."""
    if answer.status >= 500 and route.template not in MAY_BE_UNREADY:
        yield f"{answer.status} {answer.trouble}"
    elif answer.status >= 400 and route.is_api and method != "HEAD":
        if answer.kind != problems.CONTENT_TYPE:
            yield f"{answer.status} as {answer.kind or 'nothing'}: {answer.body[:200]!r}"
            return
        document = answer.json()
        known = CODES.get(document.get("code"))
        if missing := MEMBERS - set(document):
            yield f"{answer.status} without {sorted(missing)}"
        elif known is None or known.status not in (None, answer.status):
            yield f"{answer.status} with the code {document['code']}, which stands for something else or for nothing"
        elif document["status"] != answer.status or document["type"] != f"/problems/{document['code']}":
            yield f"{answer.status} says {document}"
