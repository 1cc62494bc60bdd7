"""Every route of the site, and what is answered where there is none."""

from django.contrib import admin
from django.urls import include, path, re_path

from chatsite import api_docs, health, metrics, problem_pages, problems

admin.site.site_header = admin.site.site_title = "Chatsite"
admin.site.index_title = "Administration"

urlpatterns = [
    path("", include("conversations.page_urls")),
    path("", include("chatsite.accounts.urls")),
    path("api/v1/", include("conversations.rest.urls")),
    path("api/v1/", include("chatsite.accounts.rest_urls")),
    path("api/auth/app/v1/", include("chatsite.accounts.mobile_urls")),
    path("api/schema", api_docs.SchemaView.as_view(), name="api-schema"),
    path("api/docs", api_docs.page, name="api-docs"),
    # A route, not only handler404: no slash is appended under /api/, and DEBUG shows no page there either.
    re_path(r"^api(?:/|$)", problems.no_route),
    path("problems/", problem_pages.index, name="problems"),
    path("problems/<slug:name>", problem_pages.page, name="problem"),
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
