-- A worker leaves in order: it is not counted as alive any more.
-- KEYS  1 workers  2 worker reports  3 pool  4 room  5 worker facts
-- ARGV  1 boot id
-- Returns 1 when it was known, else 0.
-- flags: allow-oom
-- include: _pool
-- include: _slots
redis.call('HDEL', KEYS[2], ARGV[1])
drop_slots(KEYS[3], KEYS[4], KEYS[5], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
