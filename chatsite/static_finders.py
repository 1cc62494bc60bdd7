"""Static files that are taken out of installed packages."""

from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage
from django.core.files.storage import FileSystemStorage, Storage

PREFIX = "swagger-ui"
# All that the API's page needs. As an installed app the package would bring 9 MB: source maps, Redoc, another layout.
_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")


class SwaggerUiFiles(BaseFinder):
    """Swagger UI's script and style, as drf-spectacular-sidecar ships them, under `swagger-ui/`."""

    def __init__(self, app_names: Iterable[str] | None = None, *args: Any, **kwargs: Any) -> None:
        package = resources.files("drf_spectacular_sidecar")
        folder = package / "static" / "drf_spectacular_sidecar" / "swagger-ui-dist"
        self._storage = FileSystemStorage(location=str(folder))
        self._storage.prefix = PREFIX  # type: ignore[attr-defined]  # where collectstatic puts its files

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        prefix, _, name = path.partition("/")
        found = [self._storage.path(name)] if prefix == PREFIX and name in _FILES else []
        return found if find_all else next(iter(found), [])

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, Storage]]:
        for name in _FILES:
            yield name, self._storage
