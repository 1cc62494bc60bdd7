"""Setting pools up and switching them: which there are, which take new messages, of whom, and which is the default."""

from uuid import UUID

from django.db import transaction

from inference.models import ModelPool

SMALL = "small"
# 2 KB a token with the tiny model: room for 130,000.
SMALL_KV_BYTES = 1 << 28


def set_open(*, pool_id: UUID, is_open: bool) -> bool:
    """Let a pool take new messages, or none; runs that it has go on. False when it was so before."""
    return ModelPool.objects.filter(pk=pool_id, is_open=not is_open).update(is_open=is_open) == 1


def set_mode(*, pool_id: UUID, mode: ModelPool.Mode) -> bool:
    """What a pool takes from now on; what it has goes on. False when it was so before."""
    return ModelPool.objects.filter(pk=pool_id).exclude(mode=mode).update(mode=mode) == 1


def make_default(*, pool_id: UUID) -> bool:
    """Make this pool the one of whoever names none, in place of the one before. False when it is that already."""
    with transaction.atomic():
        # Locked together, in one order: of two at the same time the second finds the first's choice.
        pools = ModelPool.objects.select_for_update().order_by("pk")
        if not any(pool.pk == pool_id and not pool.is_default for pool in pools):
            return False
        ModelPool.objects.filter(is_default=True).update(is_default=False)
        return ModelPool.objects.filter(pk=pool_id).update(is_default=True) == 1


def ensure_small(*, model: str) -> str:
    """The slug of the second pool, made where it is not there, and what the default one has no room for sent to it.

    What an operator has set stays: of a pool that is there, and another target of the default one.
    """
    ModelPool.objects.get_or_create(
        slug=SMALL,
        defaults={
            "name": "Small",
            "model": model,
            "context_window": 4096,
            "max_output_tokens": 256,
            "engine_options": {"kv_cache_memory_bytes": SMALL_KV_BYTES},
        },
    )
    small = ModelPool.objects.get(slug=SMALL)
    if small.overflow_to_id is None:  # else the two might make a circle
        ModelPool.objects.filter(is_default=True, overflow_to=None).exclude(pk=small.pk).update(overflow_to=small)
    return SMALL


def reasons_to_keep(*, pool: ModelPool) -> list[str]:
    """Why the pool cannot be deleted; none means that it can."""
    reasons = []
    if pool.is_default:
        reasons.append(f"{pool.name} is the default pool: make another one the default first")
    if pool.runs.exists():
        reasons.append(f"{pool.name} has answered messages, and their runs name it: close it instead")
    return reasons
