-- A worker leaves in order: it is not counted as alive any more.
-- KEYS  1 workers  2 worker reports
-- ARGV  1 boot id
-- Returns 1 when it was known, else 0.
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
