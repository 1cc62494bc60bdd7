-- Put an account rebuilt from the database in place, unless one of this generation or a later one is there.
-- KEYS  1 account  2 reservations  3 holders  4 messages
-- ARGV  1 user  2 generation  3 used tokens  4 debt in tokens  5 its moment (ms)  6 refill (tokens an hour), empty without
--       a budget  7 now (ms)  8 messages' window (ms)  9 number of live runs
--       then per live run: admission id, turn, base epoch, tokens; then per message: admission id, its moment (ms)
-- Returns 1 when loaded, 0 when the present account is as new.
local gen = redis.call('HGET', KEYS[1], 'gen')
if gen and tonumber(gen) >= tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[2], KEYS[4])
redis.call('HSET', KEYS[1], 'gen', ARGV[2], 'used', ARGV[3], 'debt', ARGV[4], 'debt_at', ARGV[5], 'rate', ARGV[6])
local messages = 10 + 4 * tonumber(ARGV[9])
for i = 10, messages - 1, 4 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1] .. '|' .. ARGV[i + 2] .. '|' .. ARGV[i + 3] .. '|1|' .. ARGV[7])
end
if messages > 10 then redis.call('SADD', KEYS[3], ARGV[1]) else redis.call('SREM', KEYS[3], ARGV[1]) end
for i = messages, #ARGV, 2 do redis.call('ZADD', KEYS[4], ARGV[i + 1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[4], 2 * tonumber(ARGV[8]))
return 1
