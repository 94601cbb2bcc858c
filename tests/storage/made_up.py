"""Migrations that were never made, one for each lock that a statement takes of a table."""

MADE_UP = {
    "0002_at_once.sql": """
        ALTER TABLE orders ADD COLUMN note text;
        ALTER TABLE ONLY trades ADD CONSTRAINT trades_have_ids CHECK (exec_id <> '') NOT VALID;
        CREATE TABLE notes (
            organization_id uuid NOT NULL REFERENCES organizations,
            body text NOT NULL DEFAULT 'ALTER TABLE trades DROP COLUMN price'
        );
        ALTER TABLE notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE INDEX notes_by_organization ON notes (organization_id);
        -- DROP TABLE trades
        ALTER TABLE IF EXISTS stats_entries ADD COLUMN note text;
        DROP INDEX refusals_by_age;
        CREATE POLICY own ON balances TO ti_owner USING (true);
        ALTER POLICY worker ON holdings USING (account_id IS NOT NULL);
        DROP POLICY worker ON paper_working;
        DROP TRIGGER rules_gone ON accounts;
        LOCK TABLE halts IN ACCESS EXCLUSIVE MODE;
        LOCK TABLE halt_closings IN SHARE ROW EXCLUSIVE MODE;
        CREATE TRIGGER append_only BEFORE DELETE ON equity_points
        FOR EACH ROW EXECUTE FUNCTION refuse_change();
        CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT ON key_budgets
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
        CREATE INDEX trades_by_time ON trades (received_at);
        CREATE UNIQUE INDEX commands_by_seq ON commands (account_id, seq, client_order_id);
        ALTER TABLE actions SET (fillfactor = 90);
        INSERT INTO workers (id, expires_at) VALUES (gen_random_uuid(), now());
        UPDATE leases SET seen_at = NULL;
        UPDATE stats_heads AS h SET rolled_seq = 0;
        DELETE FROM ONLY holdings;
    """,
    "0003_in_steps.sql": """-- In steps
ALTER TABLE trades VALIDATE CONSTRAINT trades_have_ids;
ALTER TABLE orders ADD COLUMN IF NOT EXISTS detail_again text;
SET lock_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS trades_by_time;
CREATE INDEX CONCURRENTLY trades_by_time ON trades (received_at, booking);
CREATE UNIQUE INDEX CONCURRENTLY notes_once ON notes (organization_id, body);
UPDATE commands SET unclear_at = NULL WHERE unclear_at IS NOT NULL;
""",
}
