-- Put an account rebuilt from the database in place, unless one of this generation or a later one is there.
-- KEYS  1 account  2 reservations  3 holders
-- ARGV  1 user  2 generation  3 used tokens  4 now (ms)  then per live run: admission id, turn, base epoch, tokens
-- Returns 1 when loaded, 0 when the present account is as new.
local gen = redis.call('HGET', KEYS[1], 'gen')
if gen and tonumber(gen) >= tonumber(ARGV[2]) then return 0 end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 'gen', ARGV[2], 'used', ARGV[3])
for i = 5, #ARGV, 4 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1] .. '|' .. ARGV[i + 2] .. '|' .. ARGV[i + 3] .. '|1|' .. ARGV[4])
end
if #ARGV >= 5 then redis.call('SADD', KEYS[3], ARGV[1]) else redis.call('SREM', KEYS[3], ARGV[1]) end
return 1
