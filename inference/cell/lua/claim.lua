-- Take the run that this worker serves best (now: the one that waits longest) and lease it.
-- KEYS  1 queue  2 leases  3 lease owners
-- ARGV  1 boot id  2 now (ms)  3 lease (ms)
-- Returns 'run:epoch', or false when nothing waits.
local best = redis.call('ZPOPMIN', KEYS[1])
if #best == 0 then return false end
redis.call('ZADD', KEYS[2], tonumber(ARGV[2]) + tonumber(ARGV[3]), best[1])
redis.call('HSET', KEYS[3], best[1], ARGV[1])
return best[1]
