-- What the scheduler knows of a pool, for operators.
-- KEYS  1 pool  2 queue (beginning of names)  3 places
-- ARGV  1 now (ms)  2 how long a place is kept (ms)
-- Returns JSON: waiting, begun, places, squeezed (bool), slots, hold_ms, tiers: {slug: {waiting, users, weight, free
-- (bool), share, wait_ms}}; share is of the service given lately, jobs' included.
-- flags: no-writes
-- include: _pool
-- include: _place
local now = tonumber(ARGV[1])
local pool = pool_look(KEYS[1])
local tiers = {}
local by = favour(pool, now)
given(pool, now)
local all = 0
for o = HEAD, pool.last, EACH do all = all + pool[o + GIVEN] end
for _, slug in ipairs(pool.names) do
  local o = pool.of[slug]
  local wait = 0
  if pool[N] > 0 then
    local _, raw = place(pool, o, pool[o + USERS], 0, pool[o + TIME], now)
    wait = foretold(pool, o, raw, RATIO)
  end
  tiers[slug] = {waiting = pool[o + WAITING], users = pool[o + USERS], weight = weight_of(pool, o, by),
    free = pool[o + IS_FREE] == 1, share = all > 0 and pool[o + GIVEN] / all or 0, wait_ms = math.ceil(wait)}
end
local answer = {waiting = pool[N], begun = redis.call('ZCARD', KEYS[2] .. ':begun'),
  places = redis.call('ZCOUNT', KEYS[3], string.format('(%.0f', now - ARGV[2]), '+inf'),
  squeezed = now < pool[SQUEEZE], slots = pool[SLOTS], hold_ms = pool[HOLD]}
if next(tiers) then answer.tiers = tiers end
return cjson.encode(answer)
