-- An account at the built-in paper broker is valued when its balances are read: the service reads its cash and positions, of
-- the organizations that it may see.
-- OFFSET 0: else the planner may read every account of the venue instead of this one.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE POLICY service ON paper_accounts FOR SELECT TO ti_service
    USING (organization_id = ANY ((SELECT current_organizations())::uuid[]));
CREATE POLICY service ON paper_holdings FOR SELECT TO ti_service
    USING (EXISTS (SELECT FROM paper_accounts a WHERE a.account_id = paper_holdings.account_id OFFSET 0));
GRANT SELECT ON paper_accounts, paper_holdings TO ti_service;
