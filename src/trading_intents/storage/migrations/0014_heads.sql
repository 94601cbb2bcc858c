-- squawk-ignore-file require-lock-timeout, require-statement-timeout
-- Every submit updates its account's row: with room beside it the new version stays on the page and needs no index entry.
ALTER TABLE account_heads SET (fillfactor = 20);
