-- What was charged for a run when it was claimed becomes what it cost. `account` begins the names of
-- accounts. Returns the user's tag where it has none among those who wait, for the caller to store, else nil.
-- include: _pool
local function correct(pool, queue, slug, user, charged, cost)
  local o, more = pool.of[slug], cost - charged
  if not o or more == 0 then return nil end
  pool[o + TAG] = pool[o + TAG] + more / pool[o + WEIGHT]
  pool[o + GIVEN] = math.max(0, pool[o + GIVEN] + more)
  local facts_key = tier_names(queue, slug).f
  local entry = pool[o + USERS] > 0 and redis.call('HGET', facts_key, user)
  if not entry then return more end
  -- Whoever waits keeps the place that was told: what comes after the next run pays.
  local behind, facts, owed = split(entry)
  redis.call('HSET', facts_key, user, join(behind, facts, owed + more))
  return nil
end
