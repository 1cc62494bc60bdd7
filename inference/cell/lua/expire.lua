-- Take a run that ended before anybody claimed it out of the queue.
-- KEYS  1 pool  2 queue (beginning of names)  3 account
-- ARGV  1 'run:epoch'  2 user  3 tier, '-' = none  4 pool
-- Returns 1 when it was waiting, else 0.
-- flags: allow-oom
-- include: _pool
local member, user, slug, queue = ARGV[1], ARGV[2], ARGV[3], KEYS[2]
local pool = pool_load(KEYS[1])
local function gone()
  pool[N] = pool[N] - 1
  if pool[N] == 0 then pool[LAST] = 0 end
  pool_save(KEYS[1], pool)
  return 1
end
local function unknown()
  pool_keep(KEYS[1], pool)
  return 0
end
if redis.call('HDEL', queue .. ':b', member) == 1 then
  redis.call('ZREM', queue .. ':begun', member)
  return gone()
end
local names = tier_names(queue, slug)
local entry = redis.call('HGET', names.f, user)
if not entry then return unknown() end
local o, line = pool.of[slug], queue .. ':l:' .. slug .. ':' .. user
local behind, facts, owed = split(entry)
local name, _, _, _, home = string.match(facts, FACTS)
if name ~= member then
  for _, other in ipairs(redis.call('ZRANGE', line, 0, -1)) do
    if string.sub(other, 1, #member + 1) == member .. '|' then
      redis.call('ZREM', line, other)
      redis.call('HSET', names.f, user, join(behind - 1, facts, owed))
      pool[o + WAITING] = pool[o + WAITING] - 1
      return gone()
    end
  end
  return unknown()
end
local tag = tag_of(queue, slug, user, home)
leave(pool, o, queue, slug, user, home)
pool[o + WAITING] = pool[o + WAITING] - 1
local following = redis.call('ZPOPMIN', line)[1]
if following then
  redis.call('HSET', names.f, user, join(behind - 1, following, owed))
  stand(pool, o, queue, slug, user, tag, (select(5, string.match(following, FACTS))))
else
  pool[o + USERS] = pool[o + USERS] - 1
  redis.call('HDEL', names.f, user)
  if redis.call('HEXISTS', KEYS[3], 'gen') == 1 then
    redis.call('HSET', KEYS[3], 'tag:' .. ARGV[4] .. ':' .. slug, string.format('%.3f', tag + owed))
  end
end
return gone()
