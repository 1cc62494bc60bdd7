-- Append one entry of the current epoch and tell the followers.
-- KEYS  1 stream  2 stream state
-- ARGV  1 channel  2 epoch  3 seq  4 type  5 data (JSON)  6 token ids joined by commas
--       7 now (ms) with text, or '': the first is kept as when the answer was first shown
-- Returns 'ok' | 'absent' (no stream, or not opened: verify ownership in the database) | 'stop' (not this epoch's turn)
-- include: _state
local epoch, mode, _, first = state_of(KEYS[2])
if not epoch then return 'absent' end
if epoch ~= ARGV[2] then return 'stop' end
if mode == 'wait' then return 'absent' end
if mode ~= 'open' then return 'stop' end
local id = ARGV[2] .. '-' .. ARGV[3]
redis.call('XADD', KEYS[1], id, 't', ARGV[4], 'd', ARGV[5], 'i', ARGV[6])
set_state(KEYS[2], epoch, mode, id, first == '' and ARGV[7] or first)
redis.call('PUBLISH', ARGV[1], id .. '\n' .. ARGV[4] .. '\n' .. ARGV[5])
return 'ok'
