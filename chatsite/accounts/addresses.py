"""Where a request comes from, as limits count it."""

import ipaddress

from allauth.account.adapter import get_adapter
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

# What one household or server gets: within it addresses cost nothing.
_IPV6_PREFIX = 64


def source_of(request: HttpRequest) -> str:
    """The client's address, an IPv6 one without what its owner can vary. X-Forwarded-For counts only behind a proxy
    of ours (BEHIND_TLS_PROXY)."""
    try:
        address = str(get_adapter().get_client_ip(request))
    except PermissionDenied:
        # A Unix socket has no address; whoever can reach it counts as one.
        return "local"
    parsed = ipaddress.ip_address(address)
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False).network_address)
