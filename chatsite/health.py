"""The probes: is this process alive, and can the site answer a message?"""

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from inference import api as inference


@never_cache
@csrf_exempt
@require_safe
def alive(request: HttpRequest) -> HttpResponse:
    """200 as long as the process serves requests; asks nothing else, so that an outage restarts nobody."""
    return JsonResponse({"status": "ok"})


@never_cache
@csrf_exempt
@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """200 when a worker of at least one open pool can answer, else 503; either way the pools that can.

    The first 200 also means that this process has the pools' tokenizers in memory: no send waits for one.
    """
    try:
        pools = inference.ready_pools()
    except DatabaseError:
        pools = []
    response = JsonResponse({"ready": bool(pools), "pools": pools}, status=200 if pools else 503)
    # Django logs a 5xx as an error; here it is an answer, asked for every second while workers load.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response
