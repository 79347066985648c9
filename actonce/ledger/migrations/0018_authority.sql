-- Authority: what a task type may do at a destination that is no sandbox, with caps, and the evidence it was given on.

CREATE TABLE IF NOT EXISTS actonce.authority (
    authority_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    destination      text NOT NULL,
    task_type        text NOT NULL,
    amount_field     text NOT NULL,            -- of the payload; integer minor units
    amount_max_minor bigint,                   -- of one operation; NULL in each of these: not capped
    per_hour_max     integer,
    count_max        bigint,                   -- of all operations that were ever permitted for it
    total_max_minor  bigint,
    contract_digest  text NOT NULL,            -- of the destination: another contract has no authority
    release          text NOT NULL,            -- of this software, in the evidence
    evidence_digest  text NOT NULL,            -- of the folder
    evidence_at      timestamptz NOT NULL,     -- when its oldest drill ended
    signed_by        text NOT NULL,
    saw              text NOT NULL,
    granted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    granted_by       text NOT NULL,
    reason           text NOT NULL,
    expires_at       timestamptz NOT NULL,
    ended_at         timestamptz,              -- withdrawn, replaced by another, or found expired
    ended_by         text,
    ended_why        text
);
CREATE UNIQUE INDEX IF NOT EXISTS authority_in_force ON actonce.authority (destination, task_type) WHERE ended_at IS NULL;

-- Each operation counts once, at its first permit; a retry of it is the same operation.
CREATE TABLE IF NOT EXISTS actonce.authority_use (
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    task_type    text NOT NULL,
    authority_id bigint NOT NULL REFERENCES actonce.authority,
    amount_minor bigint,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, destination, action, operation_id)
);
CREATE INDEX IF NOT EXISTS authority_use_at ON actonce.authority_use (destination, task_type, at);

-- What was used so far. Its row is locked by whoever counts, so that two permits at once do not both take the last one.
CREATE TABLE IF NOT EXISTS actonce.authority_total (
    destination  text NOT NULL,
    task_type    text NOT NULL,
    uses         bigint NOT NULL DEFAULT 0,
    amount_minor numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (destination, task_type)
);

CREATE OR REPLACE FUNCTION actonce.authority_is_never_widened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'actonce: authority % is never changed, only ended; grant another', OLD.authority_id;
END $$;
CREATE OR REPLACE TRIGGER authority_is_never_widened BEFORE UPDATE ON actonce.authority FOR EACH ROW
    WHEN (OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
          OR (to_jsonb(OLD) - '{ended_at,ended_by,ended_why}'::text[])
             IS DISTINCT FROM (to_jsonb(NEW) - '{ended_at,ended_by,ended_why}'::text[]))
    EXECUTE FUNCTION actonce.authority_is_never_widened();
CREATE OR REPLACE TRIGGER nothing_is_changed BEFORE UPDATE ON actonce.authority_use
    FOR EACH ROW EXECUTE FUNCTION actonce.nothing_is_changed();
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['authority', 'authority_use', 'authority_total'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', name);
    END LOOP;
    PERFORM actonce.audit_require('audit_authority_granted', 'authority', 'INSERT', 'true', 'authority.granted',
        '{authority_id,destination,task_type,amount_max_minor,per_hour_max,count_max,total_max_minor,contract_digest,release,evidence_digest,signed_by,granted_by,reason,expires_at}',
        'true');
    PERFORM actonce.audit_require('audit_authority_ended', 'authority', 'UPDATE',
        'OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL', 'authority.ended',
        '{authority_id,destination,task_type,ended_by,ended_why}', 'ended_at IS NOT NULL');
END $$;
