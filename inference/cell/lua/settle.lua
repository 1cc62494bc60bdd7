-- End a reservation and count what it used. Settling twice counts once. Its message stays in the window.
-- KEYS  1 account  2 reservations  3 holders
-- ARGV  1 user  2 admission id  3 tokens used  4 now (ms)
-- Returns 1 when the reservation was there, else 0.
-- flags: allow-oom
-- include: _owed
if redis.call('HDEL', KEYS[2], ARGV[2]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], 'used', ARGV[3])
local rate = tonumber(redis.call('HGET', KEYS[1], 'rate') or '')
if rate then
  local debt, at = owed(KEYS[1], rate, tonumber(ARGV[4]))
  redis.call('HSET', KEYS[1], 'debt', string.format('%.6f', debt + ARGV[3]), 'debt_at', string.format('%.0f', at))
end
if redis.call('HLEN', KEYS[2]) == 0 then redis.call('SREM', KEYS[3], ARGV[1]) end
return 1
