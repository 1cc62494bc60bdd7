"""Every route of the site, and what is answered where there is none."""

from django.contrib import admin
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView

from chatsite import health, metrics, problems

admin.site.site_header = admin.site.site_title = "Chatsite"
admin.site.index_title = "Administration"

urlpatterns = [
    path("", include("conversations.page_urls")),
    path("", include("chatsite.accounts.urls")),
    path("api/v1/", include("conversations.rest.urls")),
    path("api/v1/", include("chatsite.accounts.rest_urls")),
    path("api/auth/app/v1/", include("chatsite.accounts.mobile_urls")),
    path("api/schema", SpectacularAPIView.as_view(), name="api-schema"),
    # A route, not only handler404: no slash is appended under /api/, and DEBUG shows no page there either.
    re_path(r"^api(?:/|$)", problems.no_route),
    path("admin/", admin.site.urls),
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("metrics", metrics.metrics, name="metrics"),
]

handler400 = "chatsite.problems.bad_request"
handler403 = "chatsite.problems.forbidden"
handler404 = "chatsite.problems.not_found"
# Asked for by allauth, whose limits it words.
handler429 = "chatsite.accounts.entrance.too_many_requests"
handler500 = "chatsite.problems.server_error"
