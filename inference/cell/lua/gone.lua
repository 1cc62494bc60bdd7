-- A worker's process is known to have ended: it counts as alive no more, and the leases it held end now.
-- KEYS  1 workers  2 worker reports  3 leases  4 lease owners  5 pool  6 room  7 worker facts
-- ARGV  1 how its boot ids begin (its node)  2 now (ms)
-- Returns how many leases it held.
-- flags: allow-oom
-- include: _pool
-- include: _slots
local function is_its(boot) return string.sub(boot, 1, #ARGV[1]) == ARGV[1] end
for _, boot in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if is_its(boot) then
    redis.call('ZREM', KEYS[1], boot)
    redis.call('HDEL', KEYS[2], boot)
    drop_slots(KEYS[5], KEYS[6], KEYS[7], boot)
  end
end
local held, owners = 0, redis.call('HGETALL', KEYS[4])
for i = 1, #owners, 2 do
  if is_its(owners[i + 1]) then
    held = held + 1
    redis.call('ZADD', KEYS[3], 'XX', 'LT', ARGV[2] - 1, owners[i])
  end
end
return held
