"""Static files under names that hold a digest of their content, ES modules' imports included."""

from typing import ClassVar

from django.contrib.staticfiles.storage import HashedFilesMixin
from whitenoise.storage import CompressedManifestStaticFilesStorage


class ModuleStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc] # whitenoise has no types
    """A page's module names the modules it imports: hashed too, a deploy never mixes old ones with new ones.

    Django rewrites imports in `*.js` only; our modules end in `.mjs`. Names of source maps stay as they are: no map is
    shipped, and Django would miss it.
    """

    patterns: ClassVar[tuple[object, ...]] = tuple(
        (extension, tuple(pattern for pattern in patterns if "sourceMappingURL" not in str(pattern)))
        for extension, patterns in HashedFilesMixin.patterns
    )
    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns: ClassVar[tuple[str, object]] = (
        "*.mjs",
        HashedFilesMixin._js_module_import_aggregation_patterns[1],  # type: ignore[attr-defined]
    )
