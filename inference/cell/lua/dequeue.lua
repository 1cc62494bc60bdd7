-- Take a run that ended before anybody claimed it out of the queue.
-- KEYS  1 queue
-- ARGV  1 'run:epoch'
-- Returns 1 when it was waiting, else 0.
return redis.call('ZREM', KEYS[1], ARGV[1])
