-- Approvals: what a task wants done, shown to people, and what each of them said.

CREATE TABLE IF NOT EXISTS actonce.approval (
    approval_id  text PRIMARY KEY,
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    round        integer NOT NULL,             -- asked for the n-th time for this operation
    task_id      text NOT NULL,
    step         text NOT NULL,
    proposal     jsonb NOT NULL,               -- exactly what will run, on which terms, who asks
    digest       text NOT NULL,                -- of what will run
    requested_by text NOT NULL,
    approvers_needed integer NOT NULL,
    proposed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,         -- never moved
    state        text NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'approved', 'consumed', 'rejected', 'expired', 'withdrawn', 'changed', 'superseded')),
    decided_at   timestamptz,                  -- approved or rejected
    decided_by   text,
    consumed_at  timestamptz,                  -- by the permit's transaction, once
    ended_at     timestamptz,                  -- expired, withdrawn, changed, superseded
    ended_by     text,
    ended_why    text,
    found        jsonb,                        -- what would have run instead, when it was found to be changed
    found_digest text,
    seen_at      timestamptz,                  -- when the waiting workflow saw that it is no longer pending
    nudged_at    timestamptz,
    UNIQUE (tenant, destination, action, operation_id, round)
);
CREATE UNIQUE INDEX IF NOT EXISTS approval_open ON actonce.approval (tenant, destination, action, operation_id)
    WHERE state IN ('pending', 'approved');
CREATE INDEX IF NOT EXISTS approval_due ON actonce.approval (expires_at) WHERE state IN ('pending', 'approved');
CREATE INDEX IF NOT EXISTS approval_task ON actonce.approval (task_id);
CREATE INDEX IF NOT EXISTS approval_unseen ON actonce.approval (approval_id) WHERE state <> 'pending' AND seen_at IS NULL;

CREATE TABLE IF NOT EXISTS actonce.approval_vote (
    vote_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    approval_id text NOT NULL REFERENCES actonce.approval,
    name        text NOT NULL,
    decision    text NOT NULL CHECK (decision IN ('approve', 'reject', 'withdraw')),
    effect      text NOT NULL,                 -- counted, or the code of why it was a click and nothing more
    note        text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- A person has one voice; the same click again adds nothing to the record.
CREATE UNIQUE INDEX IF NOT EXISTS approval_vote_once ON actonce.approval_vote (approval_id, name)
    WHERE effect = 'counted' AND decision IN ('approve', 'reject');
CREATE UNIQUE INDEX IF NOT EXISTS approval_click_once ON actonce.approval_vote (approval_id, name, decision, effect);

CREATE OR REPLACE FUNCTION actonce.nothing_is_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'actonce: rows of %.% are never changed', TG_TABLE_SCHEMA, TG_TABLE_NAME;
END $$;
CREATE OR REPLACE FUNCTION actonce.deadline_is_never_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'actonce: what approval % is about, and until when, is never changed', OLD.approval_id;
END $$;
CREATE OR REPLACE TRIGGER nothing_is_changed BEFORE UPDATE ON actonce.approval_vote
    FOR EACH ROW EXECUTE FUNCTION actonce.nothing_is_changed();
CREATE OR REPLACE TRIGGER deadline_is_never_moved BEFORE UPDATE ON actonce.approval FOR EACH ROW
    WHEN (OLD.expires_at <> NEW.expires_at OR OLD.digest <> NEW.digest OR OLD.proposal <> NEW.proposal)
    EXECUTE FUNCTION actonce.deadline_is_never_moved();
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['approval', 'approval_vote'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', name);
    END LOOP;
END $$;
