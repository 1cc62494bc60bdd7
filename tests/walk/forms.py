"""The forms that a page holds: where they go, and their fields with the values that are shown."""

from html.parser import HTMLParser

_FIELDS = ("input", "select", "textarea", "button")
Forms = dict[str, dict[str, str]]


class _Reader(HTMLParser):
    def __init__(self, *, address: str) -> None:
        super().__init__()
        self.forms: Forms = {}
        self._here = address
        self._open: dict[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._open = self.forms.setdefault(given.get("action") or self._here, {})
        elif self._open is not None and tag in _FIELDS and (name := given.get("name")):
            self._open.setdefault(name, given.get("value") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None


def forms_of(page: str, *, address: str) -> Forms:
    """Address → field → value. A form without an action goes to the page's own address."""
    reader = _Reader(address=address)
    reader.feed(page)
    return reader.forms
