-- Begin an epoch in its stream: append `started`, and the text so far as one delta where the stream does not hold it.
-- KEYS  1 stream  2 stream state  3 open streams
-- ARGV  1 channel  2 epoch  3 base epoch  4 seq of the `started` entry  5 its data (JSON object without continues, last)
--       6 token ids so far  7 delta data of the text so far (JSON) or ''  8 stream's time to live (ms)  9 run
--       10 when the answer's first text was shown (ms) or ''  then the data of notices (JSON) …
-- Returns {'ok', seq of the last entry, 1 if it continues else 0} | {'refused'}
-- An epoch has one owner, so an open stream of this very epoch is the caller's own: opened again after a lost reply, at a
-- higher seq, it shows the whole text anew.
-- include: _content
-- include: _state
local epoch, seq = tonumber(ARGV[2]), tonumber(ARGV[4])
local state_epoch, mode, state_last, first = state_of(KEYS[2])
local known = tonumber(state_epoch or -1)
if known > epoch then return {'refused'} end
if known == epoch and mode ~= 'wait' then
  local own = string.match(state_last, '^' .. ARGV[2] .. '%-(%d+)$')
  if mode ~= 'open' or (own and tonumber(own) >= seq) then return {'refused'} end
end
local continues, last = false, '0-0'
if known >= 0 then
  local ids, _, newest = content(KEYS[1], ARGV[3])
  last = newest
  continues = mode ~= 'closed' and epoch > tonumber(ARGV[3]) and seq == 1 and last ~= '0-0' and ids == ARGV[6]
end
local data = ARGV[5]
-- The first `started` of the first epoch begins from nothing anyway.
if epoch > 1 or seq > 1 then
  data = string.sub(data, 1, -2) .. ',"continues":' .. tostring(continues) .. ',"last":"' .. last .. '"}'
end
local function append(number, kind, body, tokens)
  local id = ARGV[2] .. '-' .. number
  redis.call('XADD', KEYS[1], id, 't', kind, 'd', body, 'i', tokens)
  redis.call('PUBLISH', ARGV[1], id .. '\n' .. kind .. '\n' .. body)
end
redis.call('SADD', KEYS[3], ARGV[9])
append(seq, 'started', data, '')
for i = 11, #ARGV do
  seq = seq + 1
  append(seq, 'notice', ARGV[i], '')
end
if not continues and ARGV[7] ~= '' then
  seq = seq + 1
  append(seq, 'delta', ARGV[7], ARGV[6])
end
redis.call('PEXPIRE', KEYS[1], ARGV[8])
if not first or first == '' then first = ARGV[10] end
set_state(KEYS[2], ARGV[2], 'open', ARGV[2] .. '-' .. seq, first, ARGV[8])
return {'ok', seq, continues and 1 or 0}
