-- Restore: a ledger that is older than the world. See actonce/ledger/restoring.py.

ALTER TABLE actonce.identity ADD COLUMN IF NOT EXISTS clone_of text;        -- the deployment that this is a copy of
ALTER TABLE actonce.identity ADD COLUMN IF NOT EXISTS chain_id uuid;        -- whose audit chain goes on here; NULL: its own
ALTER TABLE actonce.identity ADD COLUMN IF NOT EXISTS open_restore integer; -- epoch of the restore that is not closed yet
ALTER TABLE actonce.identity ADD COLUMN IF NOT EXISTS audit_from bigint NOT NULL DEFAULT 1; -- no event gets a lower number

-- One row for each restore. Its epoch is the ledger's from then on.
CREATE TABLE IF NOT EXISTS actonce.restore (
    epoch            integer PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('restored', 'clone', 'noticed')),
    at               timestamptz NOT NULL DEFAULT clock_timestamp(), -- the lost interval ends here
    boundary_at      timestamptz NOT NULL,     -- and began here: the ledger's time of the backup
    boundary         jsonb NOT NULL,           -- what else is known of it: LSN or snapshot, sequences, skew
    manifest_digest  text,
    clone_of         text,
    journal_complete boolean NOT NULL DEFAULT false, -- what was permitted in the lost interval is known by name
    not_after        timestamptz NOT NULL,     -- the last moment at which a permit of the lost interval may be used
    bounds_until     timestamptz NOT NULL,     -- the sweep may begin: every finite bound has passed
    operations       integer NOT NULL,         -- that were not final at the boundary
    tasks            integer NOT NULL,         -- that were not at an end at the boundary
    swept_at         timestamptz,
    released_at      timestamptz,              -- its first group was released
    released_by      text,
    closed_at        timestamptz,              -- nothing is treated as possibly sent in its interval any more
    closed_by        text
);
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.restore
    FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted();

-- Destinations of which everything was listed after the bounds of a restore: what they did not show was not sent.
CREATE TABLE IF NOT EXISTS actonce.restore_listed (
    epoch       integer NOT NULL REFERENCES actonce.restore,
    destination text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (epoch, destination)
);
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.restore_listed
    FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted();

-- What the journal outside the backup tells of the lost interval, where it is complete: what was permitted in it.
CREATE TABLE IF NOT EXISTS actonce.restore_permitted (
    epoch        integer NOT NULL REFERENCES actonce.restore,
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    task_id      text NOT NULL,
    not_after    timestamptz NOT NULL,
    PRIMARY KEY (epoch, tenant, destination, action, operation_id)
);
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.restore_permitted
    FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted();

-- A task that a restore found without an end stays `quarantined` until a person releases it, whatever else happens to it.
ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS quarantined_epoch integer; -- of that restore; NULL: not (any more)
ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS restored_in integer; -- epoch of the last restore it was there for
CREATE INDEX IF NOT EXISTS task_quarantined ON actonce.task (quarantined_epoch) WHERE quarantined_epoch IS NOT NULL;
CREATE OR REPLACE FUNCTION actonce.task_stays_quarantined() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'quarantined' THEN
        NEW.since := OLD.since;
    END IF;
    NEW.state := 'quarantined';
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER task_stays_quarantined BEFORE UPDATE ON actonce.task
    FOR EACH ROW WHEN (NEW.quarantined_epoch IS NOT NULL AND NEW.state NOT IN ('complete', 'failed', 'cancelled'))
    EXECUTE FUNCTION actonce.task_stays_quarantined();

DO $$
BEGIN
    PERFORM actonce.audit_require('audit_identity', 'identity', 'UPDATE',
        '(OLD.restore_epoch, OLD.quarantined, OLD.open_restore) IS DISTINCT FROM (NEW.restore_epoch, NEW.quarantined, NEW.open_restore)',
        'ledger.epoch', '{ledger_id,restore_epoch,quarantined,open_restore,clone_of,audit_from}', NULL);
    PERFORM actonce.audit_require('audit_restore', 'restore', 'INSERT', 'true', 'restore.began',
        '{epoch,kind,boundary_at,manifest_digest,journal_complete,not_after,bounds_until,operations,tasks}', 'true');
    PERFORM actonce.audit_require('audit_restore_closed', 'restore', 'UPDATE', 'OLD.closed_at IS NULL AND NEW.closed_at IS NOT NULL',
        'restore.closed', '{epoch,closed_by}', 'closed_at IS NOT NULL');
END $$;
