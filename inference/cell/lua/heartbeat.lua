-- Tell that a worker lives, what its engine reports, and renew the leases of its runs.
-- KEYS  1 workers  2 worker reports  3 leases  4 lease owners
-- ARGV  1 boot id  2 now (ms)  3 lease (ms)  4 report (JSON)  5 forget workers silent since (ms)  then 'run:epoch' …
-- Returns the 'run:epoch' names that are not this worker's any more.
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[5])) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
end
local lost = {}
for i = 6, #ARGV do
  if redis.call('HGET', KEYS[4], ARGV[i]) == ARGV[1] then
    redis.call('ZADD', KEYS[3], tonumber(ARGV[2]) + tonumber(ARGV[3]), ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
