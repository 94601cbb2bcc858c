-- `unpriced`: symbols of opening positions that had no price when the day's baseline was recorded; they count nothing that day.
-- The triggers on this table are only for processes of the version before, which cache baselines.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE daily_baselines ADD COLUMN unpriced jsonb NOT NULL DEFAULT '[]';
