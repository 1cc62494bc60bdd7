"""The pages that the `type` of a problem document leads to, and that every code has one."""

import ast
import re
from http import HTTPStatus

import pytest
from django.test import Client
from rest_framework import exceptions

from chatsite import env, problem_kinds
from chatsite.accounts import mobile
from chatsite.problem_codes import CODES
from chatsite.tests.test_security_headers import inline_code

pytestmark = pytest.mark.django_db

# What the API's views, parsers and negotiation raise by themselves; `parse_error` is answered as `malformed`, and who
# somebody is fails in words of our own.
REST_FRAMEWORK = {
    cause.default_code: HTTPStatus(cause.status_code)
    for cause in exceptions.APIException.__subclasses__()
    if cause not in (exceptions.ParseError, exceptions.AuthenticationFailed) and cause.__module__ == exceptions.__name__
}
# The functions and classes that are given a code.
GIVEN_A_CODE = {"_problem", "document", "Kind", "AuthenticationFailed"}


def written_in_the_source() -> set[str]:
    """Codes that stand in the site's own code: given to what makes problems, or as an error's own."""
    found = set()
    for path in (env.BASE_DIR / "chatsite").rglob("*.py"):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in GIVEN_A_CODE:
                    values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                case ast.Assign(targets=[ast.Name(id="default_code")]):
                    values = [node.value]
                case _:
                    continue
            constants = [value.value for value in values if isinstance(value, ast.Constant)]
            found |= {code for code in constants if isinstance(code, str) and code}
    return found


def test_every_code_that_a_refusal_can_carry_has_a_page_and_no_other_has() -> None:
    emitted = {kind.code for kind in (problem_kinds.TABLE | problem_kinds.FRAMEWORK).values()}
    emitted |= {code for code, _ in mobile._CODES.values()} | {code for code, _ in mobile._PENDING.values()}
    emitted |= set(REST_FRAMEWORK) | written_in_the_source() | {mobile.UNNAMED, mobile._UNPROVEN[0]}
    assert "internal_error" in emitted
    assert "too_large" in emitted
    assert emitted == set(CODES)


def test_pages_state_the_status_that_the_answer_has() -> None:
    statuses = {kind.code: kind.status for kind in (problem_kinds.TABLE | problem_kinds.FRAMEWORK).values()}
    statuses |= {code: status for status, (code, _) in mobile._CODES.items()} | REST_FRAMEWORK
    assert {code: CODES[code].status for code in statuses} == statuses


def test_every_code_is_in_the_documentation() -> None:
    text = (env.BASE_DIR / "docs" / "api.md").read_text()
    errors = text[text.index("## Errors") :]
    assert set(CODES) - set(re.findall(r"`(\w+)`", errors)) == set()


@pytest.mark.parametrize("name", CODES)
def test_a_code_has_a_page_that_says_what_it_means_and_what_to_do(client: Client, name: str) -> None:
    response = client.get(f"/problems/{name}")
    assert response.status_code == 200
    page = response.content.decode()
    assert inline_code(page) == []
    assert f"<code>{name}</code>" in page
    for text in (CODES[name].meaning, CODES[name].advice):
        first_words = text.split("`")[0].strip().replace("'", "&#x27;")
        assert first_words in page
    for member in CODES[name].members:
        assert f"<code>{member}</code>" in page


def test_the_index_leads_to_every_page(client: Client) -> None:
    page = client.get("/problems/").content.decode()
    assert re.findall(r'href="/problems/(\w+)"', page) == sorted(
        CODES, key=lambda name: (CODES[name].status or 999, name)
    )
    assert inline_code(page) == []


def test_the_type_of_a_refusal_leads_to_its_page(client: Client) -> None:
    problem = client.get("/api/v1/nothing").json()
    assert client.get(problem["type"]).status_code == 200


@pytest.mark.parametrize("name", ["nothing", "not_found/", "NOT_FOUND", "%00", "a" * 1000])
@pytest.mark.django_db
def test_what_is_no_code_has_no_page(client: Client, name: str) -> None:
    assert client.get(f"/problems/{name}").status_code == 404


def test_the_scan_of_the_source_finds_codes() -> None:
    assert {"invalid_token", "registration_closed", "too_large"} <= written_in_the_source()
