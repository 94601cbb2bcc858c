-- When a backup was restored that this CREATE or REPLACE is from: it may have been sent after the backup was made, so it
-- is never sent, only looked up. NULL: it is not from a restored backup.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE commands ADD COLUMN restored_at timestamptz;
