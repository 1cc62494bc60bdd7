-- What was charged for a run when it was claimed becomes what it cost. `account` begins the names of
-- accounts. Returns the user's tag where it has none among those who wait, for the caller to store, else nil.
-- include: _pool
local function correct(pool, queue, slug, user, charged, cost)
  local o, more = pool.of[slug], cost - charged
  if not o or more == 0 then return nil end
  pool[o + TAG] = pool[o + TAG] + more / pool[o + WEIGHT]
  pool[o + GIVEN] = math.max(0, pool[o + GIVEN] + more)
  local entry = pool[o + USERS] > 0 and redis.call('HGET', queue .. ':f:' .. slug, user)
  if not entry then return more end
  local _, facts = split(entry)
  local home = select(5, string.match(facts, FACTS))
  if home == '' then
    redis.call('ZINCRBY', queue .. ':u:' .. slug, more, user)
  else
    redis.call('ZINCRBY', queue .. ':k:' .. slug, more, user)
    redis.call('ZINCRBY', queue .. ':h:' .. slug .. ':' .. home, more, user)
  end
  return nil
end
