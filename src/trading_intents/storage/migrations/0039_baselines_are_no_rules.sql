-- The result that an account's day is counted from is read with its positions again, not cached with its limits: a change
-- of it no longer moves the version of the rules.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
DROP TRIGGER rules_changed ON daily_baselines;
DROP TRIGGER rules_moved ON daily_baselines;
