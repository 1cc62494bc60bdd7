-- Reserve what one turn may use, all or nothing. Enqueues nothing: the database has not accepted the turn yet.
-- KEYS  1 account  2 reservations  3 holders  4 messages  5 workers of the pool  6 pool  7 queue (beginning of names)
--       8 places  9 room
-- ARGV  1 user  2 turn  3 base epoch  4 new admission id  5 generation at least  6 prompt tokens  7 output tokens wanted
--       8 output tokens at least  9 concurrent runs allowed  10 messages allowed  11 their window (ms)  12 token budget
--       13 its refill (tokens an hour)  14 now (ms)  15 worker's time to live (ms)
--       16 tier  17 policy's version  18 policy (JSON)  19 how long a place is kept (ms)  20 pool
--       10 is empty without such a limit, 12 and 13 without a budget; 8 is at most 7.
-- Returns {'ok', admission id, generation, tokens held}
--       | {'rebuild'}  the account is absent: load it from the database
--       | {'stale'}    the account is older than the generation asked for: somebody is rebuilding it
--       | {'no_worker'}
--       | {'full', reason, ms it would wait or -1, ms after which to ask again}  the pool has no place
--       | {'elsewhere'}  the turn is being accepted for another pool
--       | {'refused', limit, maximum, remaining, ms until it lets this turn in; -1 = when an answer under way ends}
-- A reservation of the same turn and base epoch is returned again, whatever the limits say now, and from then on is
-- marked as shared: none of those who hold it knows whether another lives on it.
-- include: _owed
-- include: _pool
-- include: _place
-- Parts of a tier's bound on waiting: an estimate beyond the first squeezes the free tiers, one beyond the second is
-- refused, so that an estimate may be off and the run is served in time all the same.
local NEAR, FULL, SQUEEZE_MS = 0.3, 0.45, 10000
local gen = redis.call('HGET', KEYS[1], 'gen')
if not gen then return {'rebuild'} end
if tonumber(gen) < tonumber(ARGV[5]) then return {'stale'} end
local now = tonumber(ARGV[14])
local rows = redis.call('HGETALL', KEYS[2])
local prefix = ARGV[2] .. '|' .. ARGV[3] .. '|'
local held = 0
for i = 1, #rows, 2 do
  local tokens, state, at = string.match(rows[i + 1], '|(%d+)|(%d)|(%d+)$')
  if string.sub(rows[i + 1], 1, #prefix) == prefix then
    -- Its run will wait in the pool that has its place.
    if state ~= '1' and not redis.call('ZSCORE', KEYS[8], rows[i]) then return {'elsewhere'} end
    if state == '0' then redis.call('HSET', KEYS[2], rows[i], prefix .. tokens .. '|2|' .. at) end
    return {'ok', rows[i], gen, tokens}
  end
  held = held + tonumber(tokens)
end
local alive = redis.call('ZCOUNT', KEYS[5], now - tonumber(ARGV[15]), '+inf')
if alive == 0 then return {'no_worker'} end
if #rows / 2 >= tonumber(ARGV[9]) then return {'refused', 'concurrent_runs', ARGV[9], '0', '-1'} end

local window, messages = tonumber(ARGV[11]), tonumber(ARGV[10])
if messages then
  local since = string.format('(%.0f', now - window)
  local sent = redis.call('ZCOUNT', KEYS[4], since, '+inf')
  if sent >= messages then
    -- The last of those that must have left the window; more than one where the limit was lowered.
    local last = redis.call('ZRANGEBYSCORE', KEYS[4], since, '+inf', 'WITHSCORES', 'LIMIT', sent - messages, 1)
    return {'refused', 'messages_per_hour', ARGV[10], '0', string.format('%.0f', last[2] + window - now)}
  end
end

local prompt, granted = tonumber(ARGV[6]), tonumber(ARGV[7])
local budget, rate = tonumber(ARGV[12]), tonumber(ARGV[13])
local debt, at, refill = owed(KEYS[1], rate, now)
if budget then
  -- What is owed is exact to less than this.
  local left = budget - held - debt + 0.000001
  granted = math.min(granted, math.floor(left) - prompt)
  local missing = prompt + tonumber(ARGV[8]) - left
  if missing > 0 then
    local wait = -1
    if missing <= debt then wait = math.ceil(missing * 3600000 / refill) end
    local remaining = math.max(0, math.floor(left))
    return {'refused', 'token_budget', ARGV[12], string.format('%.0f', remaining), string.format('%.0f', wait)}
  end
end

-- The pool's own bounds. Free tiers are refused first; others only once the free ones have no more than their floor.
local slug = ARGV[16]
local pool = pool_look(KEYS[6])
local known = pool.version
pool_rule(pool, ARGV[17], ARGV[18])
local o = tier_of(pool, slug)
if pool.version ~= known then pool_write(KEYS[6], pool) end
local is_free = pool[o + IS_FREE] == 1
if pool[MODE] == 2 or (pool[MODE] == 1 and is_free) then
  return {'full', pool[MODE] == 2 and 'drain' or 'shed_free', '-1', '30000'}
end
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now - ARGV[19])
local pending = redis.call('ZCARD', KEYS[8])
local roomiest = redis.call('ZREVRANGE', KEYS[9], 0, 0, 'WITHSCORES')
if pool[N] + pending > 0 or not roomiest[2] or tonumber(roomiest[2]) < 1 then
  -- Where it would stand: behind all users who wait, or behind its own user's runs.
  local own = redis.call('HGET', tier_names(KEYS[7], slug).f, ARGV[1])
  local rank, index, tag = pool[o + USERS], 0, tonumber(redis.call('HGET', KEYS[1], 'tag:' .. ARGV[20] .. ':' .. slug) or 0)
  if own then
    local behind, first, owed = split(own)
    rank, index = rank - 1, behind + 1
    tag = tag_of(KEYS[7], slug, ARGV[1], (select(5, string.match(first, FACTS)))) + owed
  end
  local _, raw, is_later = place(pool, o, rank + pending, index, tag, now)
  local wait, bound = foretold(pool, o, raw, ratio_of(is_later, '')), pool[o + BOUND]
  local depth = pool[o + WAITING] + pending
  if not is_free and (wait > bound * NEAR or depth > pool[DEPTH] / 2) then
    pool[SQUEEZE] = now + SQUEEZE_MS
    pool_write(KEYS[6], pool)
  end
  local most = bound * FULL
  if wait > most or depth >= pool[DEPTH] then
    -- What the free ones have beyond their floor goes to others first; no more are let in for it than can be served.
    local all, free = given(pool, now)
    local others_wait = 0
    for _, one in ipairs(pool.names) do
      if pool[pool.of[one] + IS_FREE] == 1 then others_wait = others_wait + pool[pool.of[one] + WAITING] end
    end
    local gives_way = others_wait > 0 and all > 0 and free / all > pool[FLOOR] + 0.02
    if is_free or not gives_way or wait > bound or depth >= 2 * pool[DEPTH] then
      local again = math.min(60000, math.max(1000, wait - most))
      return {'full', 'full', string.format('%.0f', wait), string.format('%.0f', again)}
    end
  end
end
redis.call('ZADD', KEYS[8], now, ARGV[4])
local tokens = string.format('%.0f', prompt + granted)
redis.call('HSET', KEYS[1], 'debt', string.format('%.6f', debt), 'debt_at', string.format('%.0f', at), 'rate', ARGV[13])
redis.call('HSET', KEYS[2], ARGV[4], prefix .. tokens .. '|0|' .. ARGV[14])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now - window)
redis.call('ZADD', KEYS[4], now, ARGV[4])
-- Of a user who does not come back; by then all of them have left the window, whatever the clocks.
redis.call('PEXPIRE', KEYS[4], 2 * window)
return {'ok', ARGV[4], gen, tokens}
