"""Pages about the codes of refusals: where the `type` of every problem document leads."""

from collections.abc import Iterable

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from chatsite.problem_codes import CODES, Code


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All codes, by status."""
    by_status = sorted(CODES.items(), key=lambda entry: (entry[1].status or 999, entry[0]))
    return render(request, "problems/index.html", {"problems": [_shown(name, code) for name, code in by_status]})


@require_safe
def page(request: HttpRequest, name: str) -> HttpResponse:
    """One code. Raises Http404 for what is none."""
    if name not in CODES:
        raise Http404
    return render(request, "problems/page.html", {"problem": _shown(name, CODES[name])})


def _shown(name: str, code: Code) -> dict[str, str | Iterable[str]]:
    return {
        "name": name,
        "number": str(code.status.value) if code.status else "4xx",
        "status": f"{code.status.value} {code.status.phrase}" if code.status else "any of 400 to 499",
        "meaning": _marked_up(code.meaning),
        "advice": _marked_up(code.advice),
        "members": code.members,
    }


def _marked_up(text: str) -> SafeString:
    """Every second part between backticks becomes <code>."""
    parts = enumerate(text.split("`"))
    return format_html_join("", "{}", ((format_html("<code>{}</code>", p) if n % 2 else p,) for n, p in parts))
