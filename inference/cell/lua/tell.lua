-- Tell the waiting runs of some users of a tier where they stand, on their own streams, where that has changed. A
-- position that rises has a reason: those go before it who have had less, or whose plan weighs more.
-- KEYS  1 pool  2 queue (beginning of names)  3 streams  4 stream states (beginnings of names)
-- ARGV  1 tier  2 from which user on, by rank  3 how many users  4 now (ms)  5 pool  6 channels (beginning of names)
--       7 ms between two events of one run at least
-- Returns {users looked at, events appended}.
-- include: _pool
-- include: _place
-- include: _state
local slug, from, count, now, queue = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), KEYS[2]
local pool = pool_look(KEYS[1])
local o = pool.of[slug]
if not o or pool[o + WAITING] == 0 then return {0, 0} end
local told = 0

-- The facts with what was told, or nil where there is nothing to tell.
local function tell(facts, rank, index, tag, owed)
  local head, before, wait_before, last = string.match(facts, '^(.*)|([^|]*)|([^|]*)|([^|]*)$')
  if now - last < tonumber(ARGV[7]) then return nil end
  before, wait_before = tonumber(before), tonumber(wait_before)
  local position, raw, is_later = place(pool, o, rank, index, tag + (index > 0 and owed or 0), now)
  local ratio = ratio_of(is_later, (select(5, string.match(facts, FACTS))))
  local wait, reason = seconds(foretold(pool, o, raw, ratio)), ''
  if position > before then
    -- Estimates go up and down a little; only what is more than that is news.
    if position < before + math.max(2, before * 0.2) then position = before else reason = ',"reason":"overtaken"' end
  end
  if position == before and math.abs(wait - wait_before) < math.max(1, wait_before * 0.1) then return nil end
  local run = string.match(head, '^[^:]*')
  if select(2, state_of(KEYS[4] .. run)) ~= 'wait' then return nil end
  local data = string.format('{"position":%d,"wait_seconds":%s,"pool":"%s"%s}', position, wait, ARGV[5], reason)
  local id = redis.call('XADD', KEYS[3] .. run, '0-*', 't', 'queued', 'd', data)
  redis.call('PUBLISH', ARGV[6] .. run, id .. '\nqueued\n' .. data)
  told = told + 1
  return table.concat({head, position, wait, ARGV[4]}, '|')
end

-- By rank, those whose runs are kept for a worker among the others: no user is left out, whatever the order of both.
local names = tier_names(queue, slug)
local free = redis.call('ZRANGE', names.u, from, from + count - 1, 'WITHSCORES')
local kept = pool[o + KEPT] == 0 and {}
  or redis.call('ZRANGE', names.k, from, from + count - 1, 'WITHSCORES')
local looked = 0
for _, found in ipairs({free, kept}) do
  for i = 1, #found, 2 do
    local user, rank = found[i], from + (i - 1) / 2
    if pool[o + KEPT] > 0 then rank = rank_of(pool, o, queue, slug, found[i + 1]) end
    local behind, facts, owed = split(redis.call('HGET', names.f, user))
    local news = tell(facts, rank, 0, found[i + 1], owed)
    if news then redis.call('HSET', names.f, user, join(behind, news, owed)) end
    if tonumber(behind) > 0 then
      local line = queue .. ':l:' .. slug .. ':' .. user
      local others = redis.call('ZRANGE', line, 0, 99, 'WITHSCORES')
      for j = 1, #others, 2 do
        news = tell(others[j], rank, (j + 1) / 2, found[i + 1], owed)
        if news then
          redis.call('ZREM', line, others[j])
          redis.call('ZADD', line, others[j + 1], news)
        end
      end
    end
    looked = looked + 1
  end
end
return {looked, told}
