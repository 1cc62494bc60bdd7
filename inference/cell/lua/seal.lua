-- Refuse an epoch from now on, then read what it and those before it published.
-- KEYS  1 stream  2 stream state  3 open streams
-- ARGV  1 epoch  2 base epoch  3 stream's time to live (ms)  4 run
-- Returns {'ok', token ids joined by commas, text, when its first text was shown (ms) or ''}
--         | {'lost'} when the stream is not there.
-- include: _content
local state = redis.call('HMGET', KEYS[2], 'epoch', 'mode')
if not state[1] then
  redis.call('HSET', KEYS[2], 'epoch', ARGV[1], 'mode', 'sealed', 'last', '0-0')
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('SADD', KEYS[3], ARGV[4])
  return {'lost'}
end
local known, epoch = tonumber(state[1]), tonumber(ARGV[1])
if known < epoch or (known == epoch and state[2] ~= 'closed') then
  redis.call('HSET', KEYS[2], 'epoch', ARGV[1], 'mode', 'sealed')
end
local ids, text, last = content(KEYS[1], ARGV[2])
if last == '0-0' then return {'lost'} end
return {'ok', ids, text, redis.call('HGET', KEYS[2], 'first') or ''}
