-- Confirm an accepted turn's reservation, put its run into the queue and, at the first epoch of its admission, open a
-- fresh stream that says where it stands. Doing it again changes nothing.
-- KEYS  1 reservations  2 account  3 pool  4 queue (beginning of names)  5 leases  6 lease owners  7 places  8 workers
--       9 room  10 worker facts  11 chat's home  12 stream  13 stream state  14 open streams
-- ARGV  1 channel  2 run  3 epoch  4 base epoch  5 admission id  6 now (ms)  7 pool  8 stream's time to live (ms)
--       9 waits since (ms)  10 user  11 tier, '-' = none  12 chat  13 prompt tokens  14 most output tokens
--       15 policy's version, or '': the one that is known  16 policy (JSON)  17 worker's time to live (ms)
-- Returns {position, wait in seconds (text), boot id of a worker with room, or ''}; position 0 = next to be served.
-- include: _pool
-- include: _place
-- include: _correct

local HEARD_MS = 250

local function alive(KEYS, ARGV, boot)
  local beat = redis.call('ZSCORE', KEYS[8], boot)
  return beat and tonumber(beat) > ARGV[6] - ARGV[17]
end

-- A worker that has room, and for how many runs: this one if it has, else the one with the most.
local function with_room(KEYS, ARGV, boot)
  local own = boot ~= '' and tonumber(redis.call('ZSCORE', KEYS[9], boot) or '0') or 0
  if own >= 1 then return boot, own end
  for _ = 1, 4 do
    local top = redis.call('ZREVRANGE', KEYS[9], 0, 0, 'WITHSCORES')
    if #top == 0 or tonumber(top[2]) < 1 then return '', 0 end
    if alive(KEYS, ARGV, top[1]) then return top[1], tonumber(top[2]) end
    redis.call('ZREM', KEYS[9], top[1])
  end
  return '', 0
end

-- The worker that has the chat in its memory, and how much of the prompt.
local function find_home(KEYS, ARGV, pool)
  local was = pool[DELAY] > 0 and redis.call('GET', KEYS[11])
  if not was then return '', 0 end
  local boot, tokens, filled = string.match(was, '^([^|]*)|([^|]*)|([^|]*)$')
  local memory, computed = string.match(redis.call('HGET', KEYS[10], boot) or '', '^[^|]*|([^|]*)|([^|]*)$')
  -- What it has computed since may have pushed the chat out of its memory.
  if not memory or computed - filled + tokens > tonumber(memory) or not alive(KEYS, ARGV, boot) then return '', 0 end
  return boot, math.min(tonumber(tokens), ARGV[13] - 1)
end

-- Where it stands already, if it does.
local function known(queue, line, entry, member)
  if redis.call('HEXISTS', queue .. ':b', member) == 1 then return 'begun' end
  if not entry then return nil end
  local _, facts = split(entry)
  if string.sub(facts, 1, #member + 1) == member .. '|' then return facts end
  for _, other in ipairs(redis.call('ZRANGE', line, 0, -1)) do
    if string.sub(other, 1, #member + 1) == member .. '|' then return other end
  end
  return nil
end

-- Whether some worker has claimed it and is about to say so in the database. One that died before it did, did nothing.
local function claimed(KEYS, ARGV, pool, member)
  local lease = redis.call('ZSCORE', KEYS[5], member)
  if not lease then return false end
  if tonumber(lease) >= tonumber(ARGV[6]) then return true end
  local owner = redis.call('HGET', KEYS[6], member)
  redis.call('ZREM', KEYS[5], member)
  redis.call('HDEL', KEYS[6], member)
  if owner then
    local _, its, whose, _, asked, output = string.match(owner, OWNER)
    local more = correct(pool, KEYS[4], its, whose, cost_of(pool, tonumber(asked), tonumber(output)), 0)
    if more and whose == ARGV[10] and redis.call('HEXISTS', KEYS[2], 'gen') == 1 then
      redis.call('HINCRBYFLOAT', KEYS[2], 'tag:' .. ARGV[7] .. ':' .. its, more)
    end
  end
  return false
end

-- at each call:
local now, slug, user, queue, member = tonumber(ARGV[6]), ARGV[11], ARGV[10], KEYS[4], ARGV[2] .. ':' .. ARGV[3]
local is_news = false
local held = redis.call('HGET', KEYS[1], ARGV[5])
if held then
  local hold, state, at = string.match(held, '^(.*)|(%d)|(%d+)$')
  if state ~= '1' then
    -- Nobody has enqueued it before.
    is_news = ARGV[3] == ARGV[4]
    redis.call('HSET', KEYS[1], ARGV[5], hold .. '|1|' .. at)
  end
end
redis.call('ZREM', KEYS[7], ARGV[5])
local pool = pool_load(KEYS[3])
local before = pool.version
pool_rule(pool, ARGV[15], ARGV[16])
local o = tier_of(pool, slug)
local position, wait, told, direct, line = 0, '0', 0, '', queue .. ':l:' .. slug .. ':' .. user

local entry = redis.call('HGET', queue .. ':f:' .. slug, user)
local is_next = true
local stands, is_new, home_told = not is_news and known(queue, line, entry, member), false, nil
if stands then
  if stands ~= 'begun' then
    position, wait = select(9, string.match(stands, FACTS))
  end
elseif not is_news and claimed(KEYS, ARGV, pool, member) then
  position = 0
elseif ARGV[3] ~= ARGV[4] then
  -- An answer that was begun is somebody's pause: it goes on before new ones begin, and is paid for already.
  redis.call('ZADD', queue .. ':begun', ARGV[9], member)
  redis.call('HSET', queue .. ':b', member, table.concat({slug, user, ARGV[12], ARGV[13],
    math.ceil(math.min(pool[o + OUT], ARGV[14]))}, '|'))
  pool[N] = pool[N] + 1
  is_new = true
  direct = with_room(KEYS, ARGV, '')
else
  is_new = true
  -- It may owe less now, by what a claim had cost that came to nothing.
  if not is_news then entry = redis.call('HGET', queue .. ':f:' .. slug, user) end
  local own = redis.call('HMGET', KEYS[2], 'out:' .. ARGV[7], 'tag:' .. ARGV[7] .. ':' .. slug)
  local expected = math.min(tonumber(own[1] or pool[o + OUT]), tonumber(ARGV[14]))
  local home, cached = find_home(KEYS, ARGV, pool)
  home_told = home
  if pool[o + WAITING] == 0 then pool[o + TAG] = math.max(pool[o + TAG], pool[CLOCK]) end
  pool[N], pool[o + WAITING] = pool[N] + 1, pool[o + WAITING] + 1
  local tag, index, behind, first, owed = nil, 0, nil, nil, 0
  if entry then
    behind, first, owed = split(entry)
    behind = tonumber(behind)
    index, is_next = behind + 1, false
    local its_home, _, its_since = select(5, string.match(first, FACTS))
    tag = tag_of(queue, slug, user, its_home)
    if tonumber(ARGV[9]) < tonumber(its_since) then
      -- It has waited for longer than the user's others: whoever it is kept for, they are.
      index, is_next = 0, true
      leave(pool, o, queue, slug, user, its_home)
      -- What was given back is its own: the charge of a claim that came to nothing.
      local back = math.min(owed, 0)
      tag, owed = tag + back, owed - back
      stand(pool, o, queue, slug, user, tag, home)
    end
  else
    -- Those who come between two claims keep their order.
    pool[o + TIME] = pool[o + TIME] + 0.001
    tag = math.max(tonumber(own[2] or '0'), pool[o + TIME])
    pool[o + USERS] = pool[o + USERS] + 1
    stand(pool, o, queue, slug, user, tag, home)
  end
  local free
  direct, free = with_room(KEYS, ARGV, home)
  -- With room for it, it waits for nobody: those before it have room as well, or are kept for their homes. Where more
  -- wait than have room, they have been told of it already.
  local others = pool[N] - 1
  for _, one in ipairs(pool.names) do others = others - pool[pool.of[one] + KEPT] end
  if direct == '' or (direct ~= home and others >= free) then
    local is_later
    position, told, is_later = place(pool, o, rank_of(pool, o, queue, slug, tag), index, tag + owed, now)
    wait = seconds(foretold(pool, o, told, ratio_of(is_later, home)))
    if is_later then told = -told end
  end
  local facts = table.concat({member, ARGV[12], ARGV[13], math.ceil(expected), home, cached, ARGV[9],
    string.format('%.0f', told), position, wait, ARGV[6]}, '|')
  if entry and index == 0 then
    redis.call('HSET', queue .. ':f:' .. slug, user, join(behind + 1, facts, owed))
    redis.call('ZADD', line, (select(7, string.match(first, FACTS))), first)
  elseif entry then
    redis.call('HSET', queue .. ':f:' .. slug, user, join(behind + 1, first, owed))
    redis.call('ZADD', line, ARGV[9], facts)
  else
    redis.call('HSET', queue .. ':f:' .. slug, user, '0|' .. facts)
  end
end
if direct ~= '' and direct == home_told and is_next then
  -- Nobody else takes it until its home has had the time to hear of it.
  redis.call('ZADD', queue .. ':x:' .. slug, now + HEARD_MS, user)
end
if direct ~= '' then redis.call('ZADD', KEYS[9], 'XX', 'INCR', -1, direct) end
if is_new or pool.version ~= before then pool_save(KEYS[3], pool) end

if ARGV[3] == ARGV[4] then
  local epoch = redis.call('HGET', KEYS[13], 'epoch')
  if not epoch or tonumber(epoch) < tonumber(ARGV[3]) then
    if epoch then redis.call('DEL', KEYS[12], KEYS[13]) end
    redis.call('HSET', KEYS[13], 'epoch', ARGV[3], 'mode', 'wait', 'last', '0-0')
    redis.call('SADD', KEYS[14], ARGV[2])
    local data = string.format('{"position":%d,"wait_seconds":%s,"pool":"%s"%s}', position, wait, ARGV[7],
      tonumber(ARGV[4]) > 1 and ',"reason":"retry"' or '')
    redis.call('XADD', KEYS[12], '0-1', 't', 'queued', 'd', data)
    redis.call('PEXPIRE', KEYS[12], ARGV[8])
    redis.call('PEXPIRE', KEYS[13], ARGV[8])
    redis.call('PUBLISH', ARGV[1], '0-1\nqueued\n' .. data)
  end
end
return {tonumber(position), wait, direct}
