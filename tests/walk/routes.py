"""Every route of the site, found in its URL configuration, and the addresses that values for its parameters give."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RegexPattern
from django.utils.regex_helper import normalize

# QUERY stands for any method that nobody here has heard of.
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY")
_PARAMETER = re.compile(r"<(?:(\w+):)?(\w+)>")
# A pattern that no address can be made from: what the route below /api/ for everything else looks like.
_ALTERNATIVES = {"^api(?:/|$)": "api/nothing/of/that/kind"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One address pattern: as the configuration writes it, and with its parameters in braces."""

    pattern: str
    template: str
    callback: Any

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.template))

    @property
    def is_api(self) -> bool:
        return self.template.startswith("api/")

    @property
    def part(self) -> str:
        """What the route belongs to: api/v1, api/auth, admin/<app>, … or pages."""
        steps = self.template.split("/")
        if steps[0] == "api":
            return "/".join(steps[:2])
        if steps[0] == "admin":
            return "/".join(steps[:3]) if len(steps) > 3 else "admin"
        return "pages"

    @property
    def model_admin(self) -> Any:
        """The model's admin that made the route; None for the others."""
        return getattr(self.callback, "model_admin", None)

    def address(self, values: Mapping[str, str]) -> bytes:
        """As it stands in a request line. The values must be percent-encoded already."""
        path = self.template
        for name in self.parameters:
            path = path.replace(f"{{{name}}}", values[name])
        return ("/" + path).encode("latin-1")

    def __str__(self) -> str:
        return self.template or "the front page"


def every_route() -> list[Route]:
    """In the order of the configuration, each address once."""
    found: dict[str, Route] = {}
    for pattern, template, entry in _walk(get_resolver().url_patterns):
        found.setdefault(template, Route(pattern=pattern, template=template, callback=entry.callback))
    return list(found.values())


def _walk(entries: list[Any], pattern: str = "", template: str = "") -> Iterator[tuple[str, str, URLPattern]]:
    for entry in entries:
        here = pattern + str(entry.pattern), template + _template(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _walk(entry.url_patterns, *here)
        else:
            assert isinstance(entry, URLPattern)
            yield (*here, entry)


def _template(pattern: Any) -> str:
    text = str(pattern)
    if text in _ALTERNATIVES:
        return _ALTERNATIVES[text]
    if not isinstance(pattern, RegexPattern):
        return _PARAMETER.sub(r"{\2}", text)
    forms = normalize(text)
    assert forms[0][0] or text in ("", "^"), f"no address can be made from {text}: say one in _ALTERNATIVES"
    return re.sub(r"%\((\w+)\)s", r"{\1}", forms[0][0])


def encoded(value: str) -> str:
    return quote(value, safe="")
