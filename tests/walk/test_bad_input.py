"""No route of the site answers 5xx to anything in a table of bad inputs, and none below /api/ refuses with a page.

The routes come from the URL configuration: one that is added is walked without a word here. The whole table goes to
what reads input: a route's own methods, as somebody whom it lets in. Other methods, other visitors and the admin's
screens get a part of it, for each of them is refused in one place. With WALK=full, as `make fuzz` runs it, everything
gets all.
"""

import functools
import html
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from tests.walk import inputs
from tests.walk.forms import Forms, forms_of
from tests.walk.inputs import Input
from tests.walk.refusals import complaints
from tests.walk.routes import METHODS, Route, encoded, every_route
from tests.walk.site import Answer, Site, Visitor

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(3600 if os.environ.get("WALK") == "full" else 300)]

FULL = os.environ.get("WALK") == "full"
ROUTES = every_route()
PARTS = sorted({route.part for route in ROUTES})
HEADERS_ON = ("", "login/", "signup/", "account/")
OWN_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Every field that a route of the API reads, with a value that it takes. What a route does not know it ignores.
GOOD = {
    "api/v1": {"content": "Hello", "client_turn_id": "t9", "title": "Mine", "pool": "default", "max_output_tokens": 5},
    "api/auth": {
        "email": "somebody@example.org", "password": "correct horse battery staple", "name": "Somebody",
        "key": "abc-123", "invitation": "", "code": "123456", "refresh_token": "a.b.c", "current_password": "x",
        "new_password": "y", "sessions": [1], "authenticators": [1], "id": 1,
    },
}  # fmt: skip
EVERY_PARAMETER = ("limit", "cursor", "after", "days", "format", "from", "to", "pool", "next", "invitation")
MALFORMED_IDS = (
    "abc", "0", "-1", "9" * 30, "0" * 5_000, "%00", "a%00b", "_00", "%ff", "%ED%A0%80", "%F0%9F%99%82", "..",
    "%2e%2e%2f", "{id}", "%7B%7D", "a b".replace(" ", "%20"), "%0d%0aX:%20y", "00000000-0000-0000-0000-000000000007",
    "00000000-0000-0000-0000-0000000000070", "__", "_2F", "1%2F2", "%3Cb%3E", "None", "NaN", ";x=1", "%25",
)  # fmt: skip
# Of an admin list's parameters: what a filter, an ordering or a page number may be given.
LIST_VALUES = (
    "",
    "\0",
    "abc",
    "-1",
    "9" * 30,
    "1.5",
    "\ufffe",
    "é",
    "None",
    "x,y",
    "2026-02-30",
    "[",
    "-0",
    "x" * 5_000,
)
WORST_LIST_VALUES = ("\0", "abc", "9" * 30, "-1")
FORM_VALUES = (
    "",
    "\0",
    "a\0b",
    "-1",
    "9" * 30,
    "1e400",
    "NaN",
    "é🙂",
    "\ufffe",
    "[]",
    "x" * 20_000,
    "2026-02-30",
    "http://[",
)
# Of the admin's forms, which are large and slow: all fields together, and each field in turn.
WORST_FORM_TEXTS = ("", "a\0b", "9" * 30, "\ufffe", "x" * 20_000)
WORST_FORM_VALUES = ("a\0b",)
LINKED = re.compile(r'href="\?([^"]+)"')


def is_open(answer: Answer) -> bool:
    """Whether a request got past the doors: it has a method of the route's and needs no other credentials."""
    return answer.status not in (401, 403, 405) and "/login/" not in answer.headers.get("Location", "")


@functools.cache
def described() -> dict[str, Any]:
    """The paths of the API's schema."""
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    found: dict[str, Any] = schema["paths"]
    return found


def reads_a_body(route: Route, method: str) -> bool:
    """Whether the route has use for one: as the schema says, and elsewhere whatever is not GET."""
    if route.part == "api/v1":
        return "requestBody" in described().get(f"/{route.template}", {}).get(method.lower(), {})
    return method != "GET"


def table(visitor: Visitor, route: Route, method: str, address: bytes) -> Iterator[Input]:
    """What the route gets with this method."""
    if not FULL:
        is_in = method in OWN_METHODS and is_open(visitor.call(route, method, address, inputs.PLAIN))
        if route.part.startswith("admin"):
            # Its pages are all made in one way, and slow; methods other than these two are taken for GET.
            is_own = is_in and method in ("GET", "POST")
            yield from (
                inputs.short() if is_own and method == "POST" else inputs.shortest() if is_own else [inputs.PLAIN]
            )
            return
        if not is_in or visitor.name == "administrator":
            yield from inputs.shortest()
            return
    # One place reads headers for all pages, and one for all methods of a route.
    if FULL or (method == "GET" and (route.is_api or route.template in HEADERS_ON)) or reads_a_body(route, method):
        yield from inputs.general()
    else:
        yield from inputs.short()
        yield from inputs.addresses()
    if FULL or reads_a_body(route, method):
        yield from inputs.bodies()
        if route.part in GOOD:
            # Most routes of accounts know two or three of the fields.
            worst = inputs.WORST_VALUES if route.part == "api/v1" else inputs.WORST_VALUES[:4]
            yield from inputs.fields_as_json(GOOD[route.part], each=inputs.VALUES if FULL else worst)


def walk(visitor: Visitor, route: Route, method: str, address: bytes, given: Iterable[Input]) -> list[str]:
    """What is wrong with the answers, in words; nothing, most of the time."""
    return [
        f"{visitor.name}: {method} {address.decode()[:120]}, {one.why}: {complaint}"
        for one in given
        for complaint in complaints(visitor.call(route, method, address, one), route, method)
    ]


def of_part(part: str) -> list[Route]:
    return [route for route in ROUTES if route.part == part]


@pytest.mark.parametrize("name", ["ada", "administrator", "nobody"])
@pytest.mark.parametrize("part", PARTS)
def test_no_bad_input_is_too_much_for_a_route(site: Site, part: str, name: str) -> None:
    visitor = site.visitor(name)
    wrong = [
        line
        for route in of_part(part)
        for method in METHODS
        for line in walk(
            visitor, route, method, site.address(route), table(visitor, route, method, site.address(route))
        )
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["ada", "administrator", "nobody"])
@pytest.mark.parametrize("part", PARTS)
def test_no_malformed_id_is_too_much_for_a_route(site: Site, part: str, name: str) -> None:
    visitor = site.visitor(name)
    methods = METHODS if FULL else ("GET", "POST") if visitor.name == "ada" else ("GET",)
    wrong = []
    for route in of_part(part):
        values = site.values_for(route)
        for parameter in route.parameters:
            for bad in MALFORMED_IDS:
                address = route.address(values | {parameter: bad})
                for method in methods:
                    wrong += walk(visitor, route, method, address, [inputs.PLAIN])
    assert wrong == []


def query_parameters(route: Route) -> tuple[str, ...]:
    """What the schema says that a GET takes in its query."""
    parameters = described().get(f"/{route.template}", {}).get("get", {}).get("parameters", ())
    return tuple(one["name"] for one in parameters if one["in"] == "query")


@pytest.mark.parametrize("part", [part for part in PARTS if part.startswith("api")])
def test_no_query_parameter_of_the_api_takes_just_anything(site: Site, part: str) -> None:
    wrong = []
    for route in of_part(part):
        names = EVERY_PARAMETER if FULL else query_parameters(route)
        wrong += walk(site.ada, route, "GET", site.address(route), inputs.fields_as_query(names))
    assert wrong == []


def test_the_schema_names_parameters_and_bodies() -> None:
    of_v1 = of_part("api/v1")
    assert {name for route in of_v1 for name in query_parameters(route)} >= {"limit", "cursor", "after"}
    assert {(route.template, method) for route in of_v1 for method in OWN_METHODS if reads_a_body(route, method)} == {
        ("api/v1/chats", "POST"),
        ("api/v1/chats/{chat_id}", "PATCH"),
        ("api/v1/chats/{chat_id}/messages", "POST"),
    }


def forms_for(site: Site, visitor: Visitor) -> Forms:
    """Every form that the visitor is shown on any page of the site, by where it goes."""
    found: Forms = {}
    for route in ROUTES:
        if not route.is_api:
            address = site.address(route)
            answer = visitor.call(route, "GET", address, inputs.PLAIN)
            if answer.kind == "text/html":
                for target, fields in forms_of(answer.body.decode(), address=address.decode()).items():
                    found.setdefault(target.partition("?")[0], {}).update(fields)
    return found


@pytest.fixture(scope="module", params=["ada", "administrator", "nobody"])
def visitor_with_forms(request: pytest.FixtureRequest, site: Site) -> tuple[Visitor, Forms]:
    visitor = site.visitor(request.param)
    return visitor, forms_for(site, visitor)


def test_the_walk_finds_forms(visitor_with_forms: tuple[Visitor, Forms]) -> None:
    visitor, forms = visitor_with_forms
    if visitor.name == "nobody":
        assert {"login", "password"} <= set(forms["/login/"])
        assert {"email", "password1", "name"} <= set(forms["/signup/"])
    else:
        assert "name" in forms["/account/profile/"]
        assert "name" in forms["/account/keys/"]
        assert "email" in forms["/account/email/"]
    if visitor.name == "administrator":
        assert {"email", "password1"} <= set(forms["/admin/accounts/user/add/"])
        assert {"action", "_selected_action", "select_across", "index"} <= set(forms["/admin/accounts/apikey/"])


@pytest.mark.parametrize("part", [part for part in PARTS if not part.startswith("api")])
def test_no_field_of_a_form_takes_just_anything(
    site: Site, visitor_with_forms: tuple[Visitor, Forms], part: str
) -> None:
    visitor, forms = visitor_with_forms
    is_short = part.startswith("admin") and not FULL
    texts, each = (WORST_FORM_TEXTS, WORST_FORM_VALUES) if is_short else (FORM_VALUES, FORM_VALUES)
    wrong = []
    for route in of_part(part):
        address = site.address(route)
        if fields := forms.get(address.decode()):
            wrong += walk(visitor, route, "POST", address, inputs.fields_as_form(fields, texts=texts, each=each))
    assert wrong == []


def _list_parameters(route: Route, page: str) -> tuple[str, ...]:
    """What an admin list can be asked by: its own links, its filters, and what every list knows."""
    linked = {html.unescape(name).split("=")[0] for query in LINKED.findall(page) for name in query.split("&amp;")}
    filtered = {
        f"{name}{lookup}"
        for name in route.model_admin.list_filter
        if isinstance(name, str)
        for lookup in ("", "__exact", "__isnull", "__id__exact", "__in", "__gte")
    }
    usual = {"q", "o", "p", "all", "e", "_to_field", "_popup", "_changelist_filters", "_facets", "pk", "id__exact"}
    return tuple(sorted(linked | filtered | usual))


@pytest.mark.parametrize("part", [part for part in PARTS if part.startswith("admin/")])
def test_no_question_to_an_admin_list_is_too_much(site: Site, part: str) -> None:
    visitor = site.administrator
    wrong = []
    for route in of_part(part):
        if route.model_admin is None:
            continue
        address = site.address(route)
        is_list = not route.parameters and not route.template.endswith("/add/")
        page = visitor.call(route, "GET", address, inputs.PLAIN).body.decode()
        names = _list_parameters(route, page) if is_list else ("_to_field", "_popup", "_changelist_filters", "user")
        for value in LIST_VALUES if FULL else WORST_LIST_VALUES:
            asked = [f"{encoded(name)}={encoded(value)}".encode() for name in names]
            # A list stops at the first that it does not take.
            queries = asked if is_list else [b"&".join(asked)]
            wrong += walk(visitor, route, "GET", address, [Input(why=query.decode(), query=query) for query in queries])
    assert wrong == []
