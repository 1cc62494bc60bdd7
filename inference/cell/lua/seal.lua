-- Refuse an epoch from now on, then read what it and those before it published.
-- KEYS  1 stream  2 stream state  3 open streams
-- ARGV  1 epoch  2 base epoch  3 stream's time to live (ms)  4 run
-- Returns {'ok', token ids joined by commas, text, when its first text was shown (ms) or ''}
--         | {'lost'} when the stream is not there.
-- include: _content
-- include: _state
local state_epoch, mode, newest, first = state_of(KEYS[2])
if not state_epoch then
  set_state(KEYS[2], ARGV[1], 'sealed', '0-0', '', ARGV[3])
  redis.call('SADD', KEYS[3], ARGV[4])
  return {'lost'}
end
local known, epoch = tonumber(state_epoch), tonumber(ARGV[1])
if known < epoch or (known == epoch and mode ~= 'closed') then
  set_state(KEYS[2], ARGV[1], 'sealed', newest, first)
end
local ids, text, last = content(KEYS[1], ARGV[2])
if last == '0-0' then return {'lost'} end
return {'ok', ids, text, first}
