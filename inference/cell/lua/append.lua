-- Append one entry of the current epoch and tell the followers.
-- KEYS  1 stream  2 stream state
-- ARGV  1 channel  2 epoch  3 seq  4 type  5 data (JSON)  6 token ids joined by commas
--       7 now (ms) with text, or '': the first is kept as when the answer was first shown
-- Returns 'ok' | 'absent' (no stream, or not opened: verify ownership in the database) | 'stop' (not this epoch's turn)
local state = redis.call('HMGET', KEYS[2], 'epoch', 'mode')
if not state[1] then return 'absent' end
if state[1] ~= ARGV[2] then return 'stop' end
if state[2] == 'wait' then return 'absent' end
if state[2] ~= 'open' then return 'stop' end
local id = ARGV[2] .. '-' .. ARGV[3]
redis.call('XADD', KEYS[1], id, 't', ARGV[4], 'd', ARGV[5], 'i', ARGV[6])
redis.call('HSET', KEYS[2], 'last', id)
if ARGV[7] ~= '' then redis.call('HSETNX', KEYS[2], 'first', ARGV[7]) end
redis.call('PUBLISH', ARGV[1], id .. '\n' .. ARGV[4] .. '\n' .. ARGV[5])
return 'ok'
