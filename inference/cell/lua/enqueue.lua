-- Confirm an accepted turn's reservation, put its run into the queue and, at the first epoch of its admission, open a
-- fresh stream that says where it stands. Doing it again changes nothing.
-- KEYS  1 reservations  2 queue  3 leases  4 pace  5 worker reports  6 stream  7 stream state
-- ARGV  1 channel  2 run  3 epoch  4 base epoch  5 admission id  6 now (ms)  7 pool  8 stream's time to live (ms)
-- Returns {position, wait in seconds}; position 0 = next to be served.
local held = redis.call('HGET', KEYS[1], ARGV[5])
if held then
  local turn, base, tokens, at = string.match(held, '^(.-)|(%d+)|(%d+)|%d|(%d+)$')
  redis.call('HSET', KEYS[1], ARGV[5], turn .. '|' .. base .. '|' .. tokens .. '|1|' .. at)
end
local member = ARGV[2] .. ':' .. ARGV[3]
redis.call('ZADD', KEYS[2], 'NX', ARGV[6], member)
local position = redis.call('ZRANK', KEYS[2], member)
local slots = 0
for _, report in ipairs(redis.call('HVALS', KEYS[5])) do slots = slots + (cjson.decode(report).slots or 0) end
local ahead = position + redis.call('ZCOUNT', KEYS[3], ARGV[6], '+inf') + 1 - slots
local wait = 0
if ahead > 0 and slots > 0 then
  wait = math.ceil(ahead * tonumber(redis.call('HGET', KEYS[4], 'run_ms') or '2000') / slots / 1000)
end
if ARGV[3] == ARGV[4] then
  local epoch = redis.call('HGET', KEYS[7], 'epoch')
  if not epoch or tonumber(epoch) < tonumber(ARGV[3]) then
    redis.call('DEL', KEYS[6])
    redis.call('HSET', KEYS[7], 'epoch', ARGV[3], 'mode', 'wait', 'last', '0-0')
    local data = cjson.encode({position = position, wait_seconds = wait, pool = ARGV[7]})
    redis.call('XADD', KEYS[6], '0-1', 't', 'queued', 'd', data)
    redis.call('PEXPIRE', KEYS[6], ARGV[8])
    redis.call('PEXPIRE', KEYS[7], ARGV[8])
    redis.call('PUBLISH', ARGV[1], '0-1\nqueued\n' .. data)
  end
end
return {position, wait}
