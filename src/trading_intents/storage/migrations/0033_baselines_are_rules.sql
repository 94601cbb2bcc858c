-- The result that an account's day is counted from is cached with the limits, so a change of it moves their version.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
CREATE CONSTRAINT TRIGGER rules_changed AFTER INSERT OR DELETE ON daily_baselines
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_rule_change();
CREATE CONSTRAINT TRIGGER rules_moved AFTER UPDATE ON daily_baselines
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN ((OLD.day, OLD.timezone, OLD.result) IS DISTINCT FROM (NEW.day, NEW.timezone, NEW.result))
EXECUTE FUNCTION count_rule_change();
