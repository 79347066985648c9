-- Alerts: what the shipped rules find wrong with the deployment now; and what a reading of a dependency measured.

ALTER TABLE actonce.dependency ADD COLUMN IF NOT EXISTS measures jsonb NOT NULL DEFAULT '{}'; -- numbers, by name

-- One row for each rule and set of labels, for ever: it comes and goes. Every firing has a page and audit events.
CREATE TABLE IF NOT EXISTS actonce.alert (
    incident    text PRIMARY KEY,              -- alert:<name>:<labels>; also that of its page
    name        text NOT NULL,
    labels      jsonb NOT NULL,
    reason      text NOT NULL,
    severity    text NOT NULL,
    state       text NOT NULL CHECK (state IN ('pending', 'firing', 'resolved')),
    since       timestamptz NOT NULL,          -- the condition has been seen without a break since then
    fired_at    timestamptz,                   -- when it had been seen for long enough, the last time
    resolved_at timestamptz,
    seen_at     timestamptz NOT NULL,
    firings     integer NOT NULL DEFAULT 0,
    value       double precision NOT NULL,     -- at the last evaluation
    summary     text NOT NULL,
    description text NOT NULL
);
CREATE INDEX IF NOT EXISTS alert_open ON actonce.alert (state) WHERE state <> 'resolved';
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.alert
    FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted();
