-- The halt that stands and the ended ones have an index each. A third one over all of them was as good as the first for
-- the planner, as long as the table was small, and led through all halts that an account ever had.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout, require-concurrent-index-deletion
DROP INDEX halts_by_scope;
