-- Tell that a worker lives, what its engine reports, and renew the leases of its runs.
-- KEYS  1 workers  2 worker reports  3 leases  4 lease owners  5 pool  6 room  7 worker facts
-- ARGV  1 boot id  2 now (ms)  3 lease (ms)  4 report (JSON), or '' from a worker that takes no more runs
--       5 forget workers and leases silent since (ms)  6 runs it holds at a time  7 how many more it can take now
--       8 tokens that its engine has memory for  9 and has computed in all  10 worker's time to live (ms)
--       then 'run:epoch' …
-- Returns {the 'run:epoch' names that are another worker's, up to 64 whose leases have lapsed}. A lease that nobody
-- holds is taken: after a restart of Redis the owners in the database are still right, and their leases are gone.
-- include: _pool
-- include: _slots
if ARGV[4] ~= '' then
  redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
  redis.call('ZADD', KEYS[6], ARGV[7], ARGV[1])
  set_slots(KEYS[5], KEYS[7], ARGV[1], ARGV[6], ARGV[8], ARGV[9])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  drop_slots(KEYS[5], KEYS[6], KEYS[7], ARGV[1])
end
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] - ARGV[10])) do
  drop_slots(KEYS[5], KEYS[6], KEYS[7], silent)
end
local function forget(scores, values)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', scores, '-inf', ARGV[5])) do
    redis.call('ZREM', scores, gone)
    redis.call('HDEL', values, gone)
  end
end
forget(KEYS[1], KEYS[2])
forget(KEYS[3], KEYS[4])
local lost = {}
for i = 11, #ARGV do
  local owner = redis.call('HGET', KEYS[4], ARGV[i])
  if not owner then redis.call('HSET', KEYS[4], ARGV[i], ARGV[1] .. '||||0|0') end
  if not owner or string.match(owner, '^[^|]*') == ARGV[1] then
    redis.call('ZADD', KEYS[3], tonumber(ARGV[2]) + tonumber(ARGV[3]), ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return {lost, redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. ARGV[2], 'LIMIT', 0, 64)}
