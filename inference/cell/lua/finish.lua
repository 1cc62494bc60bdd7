-- Give a finished run's lease back; what it was charged becomes what it cost, and estimates learn from it.
-- KEYS  1 pool  2 queue (beginning of names)  3 leases  4 lease owners  5 room  6 chat's home  7 account
-- ARGV  1 'run:epoch'  2 boot id  3 ms the slot was held  4 prompt tokens computed  5 prompt tokens cached
--       6 output tokens  7 ms until the first token  8 how long a chat's home is known (ms)  9 pool
--       10 tokens that the worker has computed in all  11 '1' for a whole answer, of which estimates learn, else ''
-- Returns 1 when the lease was this worker's, else 0.
-- flags: allow-oom
-- include: _pool
-- include: _correct
local owner = redis.call('HGET', KEYS[4], ARGV[1])
local boot, slug, user, chat, asked, expected
if owner then boot, slug, user, chat, asked, expected = string.match(owner, OWNER) end
if boot ~= ARGV[2] then return 0 end
local held, computed, cached, output, first = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]),
  tonumber(ARGV[6]), tonumber(ARGV[7])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
-- A worker that has left is nobody's home.
if redis.call('ZADD', KEYS[5], 'XX', 'INCR', 1, boot) then
  redis.call('SET', KEYS[6], string.format('%s|%.0f|%s', boot, computed + cached + output, ARGV[10]), 'PX', ARGV[8])
end
local pool = pool_load(KEYS[1])
local is_whole = ARGV[11] == '1'
if is_whole then pool[HOLD] = math.max(1, pool[HOLD] + (held - pool[HOLD]) * 0.05) end
if computed >= 64 and first > 0 then pool[FILL] = pool[FILL] + (first / computed - pool[FILL]) * 0.05 end
local o = pool.of[slug]
if o then
  asked, expected = tonumber(asked), tonumber(expected)
  -- Who goes on with a begun answer computes the prompt again: that is nobody's to pay.
  local cost = cost_of(pool, asked == 0 and 0 or computed, output)
  local more = correct(pool, KEYS[2], slug, user, cost_of(pool, asked, expected), cost)
  if is_whole then pool[o + OUT] = pool[o + OUT] + (output - pool[o + OUT]) * 0.02 end
  local out, tag = 'out:' .. ARGV[9], 'tag:' .. ARGV[9] .. ':' .. slug
  local known = redis.call('HMGET', KEYS[7], 'gen', out, tag)
  if known[1] then
    local before = tonumber(known[2] or (is_whole and output or pool[o + OUT]))
    local after = is_whole and before + (output - before) * 0.3 or before
    redis.call('HSET', KEYS[7], out, string.format('%.1f', after),
      tag, string.format('%.3f', (known[3] or 0) + (more or 0)))
  end
end
pool_save(KEYS[1], pool)
return 1
