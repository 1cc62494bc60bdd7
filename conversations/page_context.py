"""What every page of the site is given: the banner."""

from collections.abc import Callable

from django.http import HttpRequest

from conversations import banner
from conversations.contracts import Banner


def site_banner(request: HttpRequest) -> dict[str, Callable[[], Banner | None]]:
    """A function, which a template calls where it shows the banner: other templates cost no look."""
    return {"site_banner": banner.current}
