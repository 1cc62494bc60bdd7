"""The header fields that tell a client how far it is from a limit (draft-ietf-httpapi-ratelimit-headers-11)."""

# What is not counted in requests. The draft has a unit for what goes on at the same time, and none for tokens.
_UNITS = {"concurrent_runs": "concurrent-requests", "token_budget": "tokens"}
_WINDOWS_S = {"messages_per_hour": 3600}


def fields(
    *, limit: str, maximum: int, remaining: int, reset_s: int | None = None, window_s: int | None = None
) -> dict[str, str]:
    """`RateLimit-Policy` and `RateLimit` for one limit; `reset_s` seconds from now more may be allowed.

    `limit` is a name of ours (letters, digits, underscores), which a structured field's string takes as it is.
    """
    policy = f'"{limit}";q={maximum}'
    window_s = window_s or _WINDOWS_S.get(limit)
    if window_s is not None:
        policy += f";w={window_s}"
    if limit in _UNITS:
        policy += f';qu="{_UNITS[limit]}"'
    standing = f'"{limit}";r={remaining}'
    if reset_s is not None:
        standing += f";t={reset_s}"
    return {"RateLimit-Policy": policy, "RateLimit": standing}
