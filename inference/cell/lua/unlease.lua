-- Give a finished run's lease back and learn how long it held its slot.
-- KEYS  1 leases  2 lease owners  3 pace
-- ARGV  1 'run:epoch'  2 boot id  3 ms the slot was held, or -1 when it tells nothing
-- Returns 1 when the lease was this worker's, else 0.
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
local held = tonumber(ARGV[3])
if held >= 0 then
  local before = tonumber(redis.call('HGET', KEYS[3], 'run_ms') or held)
  redis.call('HSET', KEYS[3], 'run_ms', math.floor(before * 0.9 + held * 0.1))
end
return 1
