-- Leases of credentials, the access policy and its decisions. Metadata only: no secret is ever written here.

CREATE TABLE IF NOT EXISTS actonce.credential (
    name       text PRIMARY KEY,
    state      text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'expired', 'revoked')),
    generation integer NOT NULL DEFAULT 1,     -- a rotation raises it; leases of an older one get no permit
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    why        text NOT NULL DEFAULT 'registered',
    changed_by text NOT NULL DEFAULT 'registration'
);

CREATE TABLE IF NOT EXISTS actonce.lease (
    lease_id   text PRIMARY KEY,               -- as the lease manager names it
    credential text NOT NULL REFERENCES actonce.credential,
    generation integer NOT NULL,
    principal  text NOT NULL,
    scope      text[] NOT NULL,
    parent     text,                           -- what it dies with
    holder     text NOT NULL,                  -- the process
    replaces   text,
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,           -- never later than at the manager
    renewed_at timestamptz,
    revoked_at timestamptz,
    revoked_why text
);
CREATE INDEX IF NOT EXISTS lease_credential ON actonce.lease (credential, expires_at);

CREATE TABLE IF NOT EXISTS actonce.access_policy (
    version integer PRIMARY KEY,
    body    jsonb NOT NULL,
    name    text NOT NULL,
    reason  text NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS actonce.authorisation (
    authorisation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease_id       text NOT NULL REFERENCES actonce.lease,
    credential     text NOT NULL,
    principal      text NOT NULL,
    destination    text NOT NULL,
    action         text NOT NULL,
    scope          text NOT NULL,
    allowed        boolean NOT NULL,
    words          text NOT NULL,
    policy_version integer NOT NULL,
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (lease_id, destination, action, scope, policy_version)
);

ALTER TABLE actonce.attempt ADD COLUMN IF NOT EXISTS lease_id text; -- under which its permit was given

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['credential', 'lease', 'access_policy', 'authorisation'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', name);
    END LOOP;
END $$;
