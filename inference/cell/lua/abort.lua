-- Give back the lease of a run that its worker does not finish, and what it was charged beyond what it has shown.
-- KEYS  1 pool  2 queue (beginning of names)  3 leases  4 lease owners  5 room  6 accounts (beginning of names)
-- ARGV  1 'run:epoch'  2 boot id, or '' whoever holds it, as others do for one that let it lapse
--       3 output tokens that it has shown, or -1: it was never begun, and its prompt costs nothing either  4 pool
-- Returns 1 when there was such a lease, else 0.
-- flags: allow-oom
-- include: _pool
-- include: _correct
local owner = redis.call('HGET', KEYS[4], ARGV[1])
local boot, slug, user, _, asked, expected
if owner then boot, slug, user, _, asked, expected = string.match(owner, OWNER) end
if not boot or (ARGV[2] ~= '' and boot ~= ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if ARGV[2] == '' then
  -- Whether it lives is not known: until its next heartbeat nobody is to be sent there.
  redis.call('ZREM', KEYS[5], boot)
else
  redis.call('ZADD', KEYS[5], 'XX', 'INCR', 1, boot)
end
if slug ~= '' then
  local pool = pool_load(KEYS[1])
  local shown = tonumber(ARGV[3])
  asked = tonumber(asked)
  local cost = shown < 0 and 0 or cost_of(pool, asked, shown)
  local more = correct(pool, KEYS[2], slug, user, cost_of(pool, asked, tonumber(expected)), cost)
  if more and redis.call('HEXISTS', KEYS[6] .. user, 'gen') == 1 then
    redis.call('HINCRBYFLOAT', KEYS[6] .. user, 'tag:' .. ARGV[4] .. ':' .. slug, more)
  end
  pool_save(KEYS[1], pool)
end
return 1
