-- People, their sessions, and tokens: who may act here. Passwords are kept as argon2id, everything else that opens
-- something as SHA-256 of a random value of 256 bits. And decisions that a second person has to confirm.

CREATE TABLE IF NOT EXISTS actonce.person (
    name          text PRIMARY KEY,
    password_hash text,                        -- NULL: no password signs this person in
    issuer        text,                        -- of the identity provider that vouches for them, and what it calls them
    subject       text,
    roles         text[] NOT NULL,
    disabled_at   timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by    text NOT NULL,
    changed_what  text NOT NULL DEFAULT 'added'
);
CREATE UNIQUE INDEX IF NOT EXISTS person_once ON actonce.person (lower(name)); -- Ann and ann would be taken for one
CREATE UNIQUE INDEX IF NOT EXISTS person_subject ON actonce.person (issuer, subject);

CREATE TABLE IF NOT EXISTS actonce.session (
    session_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest     text NOT NULL UNIQUE,           -- SHA-256 of the cookie's value
    person     text NOT NULL REFERENCES actonce.person,
    how        text NOT NULL,                  -- password, or the identity provider
    csrf       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    ended_at   timestamptz,                    -- before its time
    ended_why  text
);
CREATE INDEX IF NOT EXISTS session_open ON actonce.session (person) WHERE ended_at IS NULL;

CREATE TABLE IF NOT EXISTS actonce.token (
    token_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest     text NOT NULL UNIQUE,           -- SHA-256 of the token
    label      text NOT NULL,
    scopes     text[] NOT NULL,
    person     text REFERENCES actonce.person, -- it can do what both allow, and speaks with this name
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text
);

-- How often a sign-in was tried lately. Counted before the password is looked at, so that many at once are no way
-- round. Names are kept as digests: some of what is typed there is a password. No fact: it is forgotten after a day.
CREATE TABLE IF NOT EXISTS actonce.sign_in_count (
    subject  text PRIMARY KEY,                 -- name:<SHA-256>, or source:<address>
    attempts integer NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS sign_in_count_old ON actonce.sign_in_count (began_at);

-- A decision that waits for a second person has no effect before they agree.
ALTER TABLE actonce.decision ADD COLUMN IF NOT EXISTS second_person boolean NOT NULL DEFAULT false;
ALTER TABLE actonce.decision ADD COLUMN IF NOT EXISTS second_at timestamptz;
ALTER TABLE actonce.decision ADD COLUMN IF NOT EXISTS second_name text;
ALTER TABLE actonce.decision ADD COLUMN IF NOT EXISTS second_agrees boolean;
ALTER TABLE actonce.decision ADD COLUMN IF NOT EXISTS second_why text;

DO $$
DECLARE of_table text;
BEGIN
    FOREACH of_table IN ARRAY ARRAY['person', 'session', 'token'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', of_table);
    END LOOP;
    PERFORM actonce.audit_require('audit_person_added', 'person', 'INSERT', 'true', 'person.added',
        '{name,roles,issuer,changed_by}', 'true');
    PERFORM actonce.audit_require('audit_person_changed', 'person', 'UPDATE',
        '(OLD.roles, OLD.disabled_at, OLD.password_hash) IS DISTINCT FROM (NEW.roles, NEW.disabled_at, NEW.password_hash)',
        'person.changed', '{name,changed_what,roles,disabled_at,changed_by}', NULL);
    PERFORM actonce.audit_require('audit_session_began', 'session', 'INSERT', 'true', 'session.began',
        '{session_id,person,how,expires_at}', 'true');
    PERFORM actonce.audit_require('audit_session_ended', 'session', 'UPDATE', 'OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL',
        'session.ended', '{session_id,person,ended_why}', 'ended_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_token_created', 'token', 'INSERT', 'true', 'token.created',
        '{token_id,label,scopes,person,expires_at,created_by}', 'true');
    PERFORM actonce.audit_require('audit_token_revoked', 'token', 'UPDATE', 'OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL',
        'token.revoked', '{token_id,label,revoked_by}', 'revoked_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_decision_recorded', 'decision', 'INSERT', 'true', 'decision.recorded',
        '{decision_id,destination,action,decision,name,reason,evidence,object_id,expected_epoch,expected_version,residual_risk,second_person}',
        'true');
    PERFORM actonce.audit_require('audit_decision_second', 'decision', 'UPDATE', 'OLD.second_at IS NULL AND NEW.second_at IS NOT NULL',
        'decision.second_person', '{decision_id,destination,action,decision,name,second_name,second_agrees,second_why}',
        'second_at IS NOT NULL');
END $$;
