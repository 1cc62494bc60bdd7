-- Helper, included by other scripts. owed(account, rate, now) → tokens of the budget that are used and not refilled at
-- `now` (ms), the moment that this holds for, and the refill; `rate` in tokens an hour, nil without a budget: nothing is
-- owed then. What an earlier, faster refill brought back is not owed anew: of the account's own rate and this one the
-- faster counts until the next admission.
-- A clock that went backwards refills nothing. Parts of tokens are kept to a millionth.
local function owed(account, rate, now)
  if not rate then return 0, now, nil end
  local row = redis.call('HMGET', account, 'debt', 'debt_at', 'rate')
  local debt, at = tonumber(row[1] or '0'), tonumber(row[2] or '0')
  local passed = math.max(0, now - at)
  local refill = math.max(rate, tonumber(row[3] or '') or 0)
  return math.max(0, debt - refill * passed / 3600000), at + passed, refill
end
