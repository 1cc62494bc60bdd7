-- Give back a reservation that its only holder does not use, and its message. One that is shared or confirmed stays:
-- somebody may live on it, and the reaper finds out.
-- KEYS  1 reservations  2 holders  3 messages  4 places
-- ARGV  1 user  2 admission id
-- Returns 1 when it was given back, else 0.
-- flags: allow-oom
local held = redis.call('HGET', KEYS[1], ARGV[2])
if not held or not string.match(held, '|0|%d+$') then return 0 end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
redis.call('ZREM', KEYS[4], ARGV[2])
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end
return 1
