"""Filters for numbers: grouped for people, plain for machines."""

from django import template

register = template.Library()


@register.filter
def grouped(number: int) -> str:
    """12345678 → `12,345,678`."""
    return f"{number:,}"


@register.filter
def plain(number: float) -> str:
    """A number as SVG and HTML attributes take it, in whatever language the page is."""
    return f"{number:g}"


@register.filter
def percent(share: float | None) -> str:
    """0.256 → `26 %`; a dash for what is not known."""
    return "–" if share is None else f"{share:.0%}".replace("%", " %")


@register.filter
def seconds(number: float) -> str:
    """12.4 → `12 s`, 0.3 → `0.3 s`, 90 → `1 min 30 s`."""
    if number < 10:
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
