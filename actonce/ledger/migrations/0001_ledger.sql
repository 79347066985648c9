-- The ledger: what was asked, what was permitted, what came back, what was read, who decided.
-- Nothing is ever deleted here, and no key is used twice. Every statement may run again: a process that dies between
-- a migration and the mark that it ran leaves nothing to repair.

CREATE SCHEMA IF NOT EXISTS actonce;

CREATE TABLE IF NOT EXISTS actonce.identity (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ledger_id     uuid NOT NULL,
    deployment    text NOT NULL,
    restore_epoch integer NOT NULL DEFAULT 1,
    quarantined   boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS actonce.task (
    task_id        text PRIMARY KEY,
    tenant         text NOT NULL,
    task_type      text NOT NULL,
    task_key       text NOT NULL,
    workflow_id    text NOT NULL,
    payload        jsonb NOT NULL,
    payload_digest text NOT NULL,
    state          text NOT NULL DEFAULT 'queued',
    reason         text,
    detail         text,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    recorded       boolean NOT NULL DEFAULT false, -- true once Temporal has the workflow
    cancel_requested boolean NOT NULL DEFAULT false,
    outcome        jsonb,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, task_type, task_key)
);
CREATE INDEX IF NOT EXISTS task_state ON actonce.task (state, since);

CREATE TABLE IF NOT EXISTS actonce.plan (
    task_id    text PRIMARY KEY,
    digest     text NOT NULL,
    body       jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS actonce.contract (
    name       text NOT NULL,
    digest     text NOT NULL,
    version    integer NOT NULL,
    body       jsonb NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, digest)
);

CREATE TABLE IF NOT EXISTS actonce.operation (
    tenant           text NOT NULL,
    destination      text NOT NULL,
    action           text NOT NULL,
    operation_id     text NOT NULL,
    task_id          text NOT NULL,
    step             text NOT NULL,
    iteration        integer NOT NULL,
    payload          jsonb NOT NULL,
    payload_digest   text NOT NULL,
    account          text NOT NULL,
    natural_key      text,
    reverses         text,
    contract_version integer NOT NULL,
    contract_digest  text NOT NULL,
    guarantee        text NOT NULL,            -- the contract's late_arrival, for people
    state            text NOT NULL DEFAULT 'ready',
    last_event       text NOT NULL DEFAULT 'intent', -- of the lifecycle table; the audit trigger names it
    reason           text,
    words            text,
    version          bigint NOT NULL DEFAULT 1,
    epoch            integer NOT NULL,
    attempt          integer NOT NULL DEFAULT 0,
    attempts         integer NOT NULL DEFAULT 0, -- permits consumed, over all epochs
    generation       integer NOT NULL DEFAULT 0, -- of the key; a cancelled key is spent
    nonce            uuid,
    object_id        text,
    receipt          jsonb,
    completion       text,
    issued_at        timestamptz,              -- fact 1: a permit to send was consumed
    committed_at     timestamptz,              -- fact 2: evidence says the effect happened
    acknowledged_at  timestamptz,              -- fact 3: an acknowledgement was received
    not_after        timestamptz,
    may_commit_until timestamptz,              -- over all attempts; NULL with unbounded = nothing bounds it
    unbounded        boolean NOT NULL DEFAULT false,
    reconcile_at     timestamptz,              -- when absent, holds and pages may begin
    decide_at        timestamptz,              -- from when a person may decide: T and the routes' lag have passed
    recount_at       timestamptz,              -- rule R10: when it must be read again
    recounted_at     timestamptz,
    retry_granted    boolean NOT NULL DEFAULT false, -- permit_one_retry: one permit beyond attempts_max
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, destination, action, operation_id)
);
CREATE INDEX IF NOT EXISTS operation_open ON actonce.operation (state, updated_at)
    WHERE state NOT IN ('committed', 'refused', 'closed');
CREATE INDEX IF NOT EXISTS operation_recount ON actonce.operation (recount_at) WHERE recount_at IS NOT NULL AND recounted_at IS NULL;
CREATE INDEX IF NOT EXISTS operation_task ON actonce.operation (task_id);
CREATE INDEX IF NOT EXISTS operation_by_id ON actonce.operation (operation_id);
CREATE UNIQUE INDEX IF NOT EXISTS operation_natural_key ON actonce.operation (tenant, destination, action, natural_key)
    WHERE natural_key IS NOT NULL AND state NOT IN ('refused', 'closed');

CREATE TABLE IF NOT EXISTS actonce.attempt (
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    epoch        integer NOT NULL,
    attempt      integer NOT NULL,
    nonce        uuid NOT NULL UNIQUE,
    generation   integer NOT NULL,
    wire_key     text NOT NULL,
    owner        jsonb NOT NULL,               -- host, boot id, pid, start time
    issued_at    timestamptz NOT NULL,
    not_after    timestamptz NOT NULL,
    -- what the contract promised that this attempt was sent under; a later version binds no request that is on its way
    late_arrival     text NOT NULL,
    may_commit_until timestamptz,              -- NULL: nothing bounded it
    key_kept_until   timestamptz,              -- its key may be sent again until then; NULL: not registered on arrival
    outcome      text,                         -- not_sent, not_accepted, refused, acknowledged, unknown
    outcome_at   timestamptz,
    detail       text,
    PRIMARY KEY (tenant, destination, action, operation_id, epoch, attempt)
);

CREATE TABLE IF NOT EXISTS actonce.acknowledgement (
    ack_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    epoch        integer NOT NULL,
    attempt      integer NOT NULL,
    object_id    text NOT NULL,
    receipt      jsonb NOT NULL,
    state_before text NOT NULL,                -- what the operation was when it arrived
    contradicts  boolean NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS acknowledgement_operation ON actonce.acknowledgement (operation_id);

CREATE TABLE IF NOT EXISTS actonce.verdict (
    verdict_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    epoch        integer NOT NULL,
    attempt      integer NOT NULL,
    version      bigint NOT NULL,
    outcome      text NOT NULL,
    reason       text,
    words        text NOT NULL,
    readings     jsonb NOT NULL,
    body         jsonb NOT NULL,
    applied      boolean NOT NULL,             -- false: its compare-and-set was lost
    at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS verdict_operation ON actonce.verdict (operation_id);

CREATE TABLE IF NOT EXISTS actonce.hold (
    hold_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    task_id      text NOT NULL,
    reason       text NOT NULL,
    words        text NOT NULL,
    opened_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at    timestamptz,
    closed_by    text,                         -- evidence, or decision:<id>
    seen_at      timestamptz,                  -- when the waiting workflow saw that it is closed
    nudged_at    timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS hold_open ON actonce.hold (tenant, destination, action, operation_id) WHERE closed_at IS NULL;

CREATE TABLE IF NOT EXISTS actonce.decision (
    decision_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant           text NOT NULL,
    destination      text NOT NULL,
    action           text NOT NULL,
    operation_id     text NOT NULL,
    decision         text NOT NULL,
    name             text NOT NULL,
    reason           text NOT NULL,
    evidence         text NOT NULL,
    object_id        text,
    expected_epoch   integer NOT NULL,
    expected_version bigint NOT NULL,
    expires_at       timestamptz NOT NULL,
    residual_risk    text,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumed_at      timestamptz,
    result           text                      -- applied, superseded_by_evidence, stale, expired
);
CREATE UNIQUE INDEX IF NOT EXISTS decision_once ON actonce.decision
    (tenant, destination, action, operation_id, expected_epoch, expected_version) WHERE result IS NULL OR result = 'applied';

CREATE TABLE IF NOT EXISTS actonce.page (
    page_id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    incident        text NOT NULL,             -- one per thing that is wrong, not per sweep
    reason          text NOT NULL,
    severity        text NOT NULL DEFAULT 'page',
    title           text NOT NULL,
    body            text NOT NULL,
    operation_id    text,
    task_id         text,
    opened_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_again      integer NOT NULL DEFAULT 0,
    sent_at         timestamptz,
    sends           integer NOT NULL DEFAULT 0,
    delivery        jsonb NOT NULL DEFAULT '{}',
    acknowledged_at timestamptz,
    acknowledged_by text,
    closed_at       timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS page_open ON actonce.page (incident) WHERE closed_at IS NULL;

CREATE TABLE IF NOT EXISTS actonce.beacon (
    beacon_id    text PRIMARY KEY,
    destination  text NOT NULL,
    account      text NOT NULL,
    operation_id text NOT NULL,
    wanted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    committed_at timestamptz                   -- by the destination's clock
);
CREATE INDEX IF NOT EXISTS beacon_operation ON actonce.beacon (operation_id);

CREATE TABLE IF NOT EXISTS actonce.key_cancel (
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    wire_key     text NOT NULL,
    wanted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    cancelled_at timestamptz,
    object_id    text,                         -- the destination says it made this before the cancel
    PRIMARY KEY (tenant, destination, action, operation_id, wire_key)
);

CREATE TABLE IF NOT EXISTS actonce.probe (
    tenant       text NOT NULL,
    destination  text NOT NULL,
    action       text NOT NULL,
    operation_id text NOT NULL,
    object_id    text NOT NULL,
    wanted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    answered_at  timestamptz,
    object_exists boolean,
    PRIMARY KEY (tenant, destination, action, operation_id, object_id)
);

CREATE TABLE IF NOT EXISTS actonce.dependency (
    name       text PRIMARY KEY,
    kind       text NOT NULL,
    state      text NOT NULL,                  -- up, degraded, down
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    checked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    how        text NOT NULL,
    detail     text,
    blocks     text
);

-- Required events, written in the transaction of the state they describe and shipped from here.
CREATE TABLE IF NOT EXISTS actonce.audit (
    audit_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind         text NOT NULL,
    tenant       text,
    task_id      text,
    operation_id text,
    body         jsonb NOT NULL
);

-- Every change of an operation's state is an audit event, by construction and in the same transaction.
CREATE OR REPLACE FUNCTION actonce.audit_operation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO actonce.audit (kind, tenant, task_id, operation_id, body)
    VALUES ('operation.' || NEW.last_event, NEW.tenant, NEW.task_id, NEW.operation_id, jsonb_build_object(
        'destination', NEW.destination, 'action', NEW.action, 'state', NEW.state, 'reason', NEW.reason,
        'epoch', NEW.epoch, 'attempt', NEW.attempt, 'version', NEW.version, 'digest', NEW.payload_digest,
        'object_id', NEW.object_id));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER audit_intent AFTER INSERT ON actonce.operation
    FOR EACH ROW EXECUTE FUNCTION actonce.audit_operation();
CREATE OR REPLACE TRIGGER audit_change AFTER UPDATE ON actonce.operation
    FOR EACH ROW WHEN (OLD.version <> NEW.version) EXECUTE FUNCTION actonce.audit_operation();

CREATE OR REPLACE FUNCTION actonce.nothing_is_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'actonce: rows of %.% are never deleted', TG_TABLE_SCHEMA, TG_TABLE_NAME;
END $$;
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['task', 'plan', 'operation', 'attempt', 'acknowledgement', 'verdict', 'hold',
                                'decision', 'page', 'beacon', 'key_cancel', 'probe', 'audit', 'identity', 'contract'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', name);
    END LOOP;
END $$;
