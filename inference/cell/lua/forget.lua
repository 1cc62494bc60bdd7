-- Erase the streams of runs that are gone, and let nothing be written to them again: what is left of each is a state that
-- is newer than any epoch. Whoever follows one is told of an end that is not there, and asks the database.
-- KEYS  1 open streams  then of each run: stream, stream state …
-- ARGV  1 what is left's time to live (ms)  2 last epoch there can be  3 seq of terminal events
--       then of each run: run, channel …
-- Returns how many of them had a stream.
-- flags: allow-oom
-- include: _state
local found = 0
local id = ARGV[2] .. '-' .. ARGV[3]
for i = 2, #KEYS, 2 do
  found = found + redis.call('DEL', KEYS[i])
  set_state(KEYS[i + 1], ARGV[2], 'closed', id, '', ARGV[1])
  redis.call('SREM', KEYS[1], ARGV[i + 2])
  redis.call('PUBLISH', ARGV[i + 3], id .. '\ncancelled\n{}')
end
return found
