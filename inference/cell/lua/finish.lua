-- Give a finished run's lease back; what it was charged becomes what it cost, and estimates learn from it.
-- KEYS  1 pool
-- ARGV  1 'run:epoch'  2 boot id  3 chat
--       4 numbers, as doubles: ms the slot was held, prompt tokens computed, prompt tokens cached, output tokens, ms until
--         the first token, tokens that the worker has computed in all, how long a chat's home is known (ms), 1 for a whole
--         answer, of which estimates learn, else 0
-- Returns 1 when the lease was this worker's, else 0.
-- flags: allow-oom
-- include: _names
-- include: _pool
-- include: _correct
local names, member = names_of(KEYS[1]), ARGV[1]
local owner = redis.call('HGET', names.owners, member)
local boot, slug, user, chat, asked, expected
if owner then boot, slug, user, chat, asked, expected = string.match(owner, OWNER) end
if boot ~= ARGV[2] then return 0 end
local held, computed, cached, output, first, filled, home_ms, whole = struct.unpack('<dddddddd', ARGV[4])
redis.call('HDEL', names.owners, member)
redis.call('ZREM', names.leases, member)
-- A worker that has left is nobody's home.
if redis.call('ZADD', names.room, 'XX', 'INCR', 1, boot) then
  local home = string.format('%s|%.0f|%.0f', boot, computed + cached + output, filled)
  redis.call('SET', names.homes .. ARGV[3], home, 'PX', home_ms)
end
local pool = pool_load(KEYS[1])
local is_whole = whole == 1
if is_whole then pool[HOLD] = math.max(1, pool[HOLD] + (held - pool[HOLD]) * 0.05) end
if computed >= 64 and first > 0 then pool[FILL] = pool[FILL] + (first / computed - pool[FILL]) * 0.05 end
local o = pool.of[slug]
if o then
  asked, expected = tonumber(asked), tonumber(expected)
  -- Who goes on with a begun answer computes the prompt again: that is nobody's to pay.
  local cost = cost_of(pool, asked == 0 and 0 or computed, output)
  local more = correct(pool, names.queue, slug, user, cost_of(pool, asked, expected), cost)
  if is_whole then pool[o + OUT] = pool[o + OUT] + (output - pool[o + OUT]) * 0.02 end
  local account, out, tag = names.accounts .. user, names.out, names.tag .. slug
  local known = redis.call('HMGET', account, 'gen', out, tag)
  if known[1] then
    local before = tonumber(known[2] or (is_whole and output or pool[o + OUT]))
    local after = is_whole and before + (output - before) * 0.3 or before
    local charged = string.format('%.3f', (known[3] or 0) + (more or 0))
    if is_job(pool, o) then
      -- What a job took says nothing of its user's answers.
      redis.call('HSET', account, tag, charged)
    else
      redis.call('HSET', account, out, string.format('%.1f', after), tag, charged)
    end
  end
end
pool_keep(KEYS[1], pool)
return 1
