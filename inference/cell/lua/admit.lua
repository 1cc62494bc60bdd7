-- Reserve what one turn may use, all or nothing. Enqueues nothing: the database has not accepted the turn yet.
-- KEYS  1 account  2 reservations  3 holders  4 workers of the pool
-- ARGV  1 user  2 turn  3 base epoch  4 new admission id  5 generation at least  6 tokens  7 concurrent runs allowed
--       8 now (ms)  9 worker's time to live (ms)
-- Returns {'ok', admission id, generation}
--       | {'rebuild'}  the account is absent: load it from the database
--       | {'stale'}    the account is older than the generation asked for: somebody is rebuilding it
--       | {'no_worker'}
--       | {'refused', limit, maximum}
-- A reservation of the same turn and base epoch is returned again, whatever the limits say now, and from then on is
-- marked as shared: none of those who hold it knows whether another lives on it.
local gen = redis.call('HGET', KEYS[1], 'gen')
if not gen then return {'rebuild'} end
if tonumber(gen) < tonumber(ARGV[5]) then return {'stale'} end
local held = redis.call('HGETALL', KEYS[2])
local prefix = ARGV[2] .. '|' .. ARGV[3] .. '|'
for i = 1, #held, 2 do
  if string.sub(held[i + 1], 1, #prefix) == prefix then
    local tokens, at = string.match(held[i + 1], '|(%d+)|0|(%d+)$')
    if tokens then redis.call('HSET', KEYS[2], held[i], prefix .. tokens .. '|2|' .. at) end
    return {'ok', held[i], gen}
  end
end
local alive = redis.call('ZCOUNT', KEYS[4], tonumber(ARGV[8]) - tonumber(ARGV[9]), '+inf')
if alive == 0 then return {'no_worker'} end
if #held / 2 >= tonumber(ARGV[7]) then return {'refused', 'concurrent_runs', ARGV[7]} end
redis.call('HSET', KEYS[2], ARGV[4], prefix .. ARGV[6] .. '|0|' .. ARGV[8])
redis.call('SADD', KEYS[3], ARGV[1])
return {'ok', ARGV[4], gen}
