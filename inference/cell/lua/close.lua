-- Append a run's terminal event once. It names the last content entry, or nothing where the stream does not hold the
-- whole text, so that a follower knows whether it missed some.
-- KEYS  1 stream  2 stream state  3 open streams
-- ARGV  1 channel  2 epoch  3 base epoch  4 seq of terminal events  5 type  6 data (non-empty JSON object without last)
--       7 the answer's whole text  8 stream's time to live (ms)  9 run
-- Returns 1 when appended, 0 when the stream is newer or closed already.
-- include: _content
-- include: _state
local epoch = tonumber(ARGV[2])
local state_epoch, mode, _, first = state_of(KEYS[2])
local known = tonumber(state_epoch or -1)
if known > epoch or (known == epoch and mode == 'closed') then return 0 end
local _, text, last = content(KEYS[1], ARGV[3])
local named = 'null'
if text == ARGV[7] then named = '"' .. last .. '"' end
local id = ARGV[2] .. '-' .. ARGV[4]
local data = string.sub(ARGV[6], 1, -2) .. ',"last":' .. named .. '}'
redis.call('XADD', KEYS[1], id, 't', ARGV[5], 'd', data)
redis.call('SREM', KEYS[3], ARGV[9])
redis.call('PEXPIRE', KEYS[1], ARGV[8])
set_state(KEYS[2], ARGV[2], 'closed', id, first or '', ARGV[8])
redis.call('PUBLISH', ARGV[1], id .. '\n' .. ARGV[5] .. '\n' .. data)
return 1
