-- Audit: required events of every table, a gapless hash chain over them, and how far they were shipped.

-- An event gets its place in the chain after its transaction has committed (see actonce/ledger/audit_chain.py).
ALTER TABLE actonce.audit ADD COLUMN IF NOT EXISTS seq bigint;
ALTER TABLE actonce.audit ADD COLUMN IF NOT EXISTS previous_hash text;
ALTER TABLE actonce.audit ADD COLUMN IF NOT EXISTS hash text;
ALTER TABLE actonce.audit ADD COLUMN IF NOT EXISTS sealed_at timestamptz;
CREATE UNIQUE INDEX IF NOT EXISTS audit_seq ON actonce.audit (seq) WHERE seq IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_unsealed ON actonce.audit (audit_id) WHERE seq IS NULL;

CREATE OR REPLACE FUNCTION actonce.audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.seq IS NOT NULL
        OR (NEW.audit_id, NEW.at, NEW.kind, NEW.tenant, NEW.task_id, NEW.operation_id, NEW.body)
            IS DISTINCT FROM (OLD.audit_id, OLD.at, OLD.kind, OLD.tenant, OLD.task_id, OLD.operation_id, OLD.body) THEN
        RAISE EXCEPTION 'actonce: audit event % is never changed', OLD.audit_id;
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER audit_is_append_only BEFORE UPDATE ON actonce.audit
    FOR EACH ROW EXECUTE FUNCTION actonce.audit_is_append_only();

-- How far each sink has confirmed the chain. The sink's own end is asked as well wherever it can tell.
CREATE TABLE IF NOT EXISTS actonce.audit_cursor (
    sink          text PRIMARY KEY,
    seq           bigint NOT NULL DEFAULT 0,
    hash          text,
    shipped_at    timestamptz,
    tried_at      timestamptz,
    failing_since timestamptz,
    error         text
);

-- Emptied and written again and again: that takes new space each time, and so shows a ledger that is full.
CREATE TABLE IF NOT EXISTS actonce.write_probe (at timestamptz NOT NULL);

-- Appends an event about the changed row: its kind (a trailing dot takes the row's state) and the columns it tells.
CREATE OR REPLACE FUNCTION actonce.audit_fact() RETURNS trigger LANGUAGE plpgsql SET timezone TO 'UTC' AS $$
DECLARE
    whole jsonb := to_jsonb(NEW);
    told  jsonb := '{}';
BEGIN
    FOR i IN 1 .. TG_NARGS - 1 LOOP
        told := told || jsonb_build_object(TG_ARGV[i], whole -> TG_ARGV[i]);
    END LOOP;
    INSERT INTO actonce.audit (kind, tenant, task_id, operation_id, body) VALUES (
        CASE WHEN right(TG_ARGV[0], 1) = '.' THEN TG_ARGV[0] || (whole ->> 'state') ELSE TG_ARGV[0] END,
        whole ->> 'tenant', whole ->> 'task_id', whole ->> 'operation_id', told);
    RETURN NULL;
END $$;

-- A change of state is an event even where somebody forgot the version.
CREATE OR REPLACE TRIGGER audit_change AFTER UPDATE ON actonce.operation
    FOR EACH ROW WHEN (OLD.version <> NEW.version OR OLD.state <> NEW.state) EXECUTE FUNCTION actonce.audit_operation();

-- One call for each kind of event: installs its trigger and, for rows from before, appends the event now (it says so).
-- `has`: which rows have this event; NULL where only the change itself tells. The first column told is the row's key.
CREATE OR REPLACE FUNCTION actonce.audit_require(
    trigger_name text, of_table text, happening text, condition text, kind text, told text[], has text
) RETURNS void LANGUAGE plpgsql SET timezone TO 'UTC' AS $$
DECLARE
    arguments text;
    columns   text;
    event     text := quote_literal(kind) || CASE WHEN right(kind, 1) = '.' THEN ' || t.state' ELSE '' END;
BEGIN
    SELECT string_agg(quote_literal(word), ', ' ORDER BY n) INTO arguments
        FROM unnest(kind || told) WITH ORDINALITY AS words (word, n);
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s ON actonce.%I FOR EACH ROW WHEN (%s) '
                   'EXECUTE FUNCTION actonce.audit_fact(%s)', trigger_name, happening, of_table, condition, arguments);
    IF has IS NULL THEN
        RETURN;
    END IF;
    SELECT string_agg(format('%L, to_jsonb(t) -> %L', name, name), ', ') INTO columns FROM unnest(told) AS name;
    EXECUTE format(
        'INSERT INTO actonce.audit (kind, tenant, task_id, operation_id, body) '
        'SELECT %s, to_jsonb(t) ->> ''tenant'', to_jsonb(t) ->> ''task_id'', to_jsonb(t) ->> ''operation_id'', '
        'jsonb_build_object(''backfilled'', true, %s) FROM actonce.%I t WHERE (%s) AND NOT EXISTS '
        '(SELECT 1 FROM actonce.audit a WHERE a.kind = %s AND coalesce(a.body ->> %L, a.task_id) = to_jsonb(t) ->> %L)',
        event, columns, of_table, has, event, told[1], told[1]);
END $$;

-- actonce/ledger/audit_facts.py says when each of these happens, and verifies it.
DO $$
BEGIN
    PERFORM actonce.audit_require('audit_task_accepted', 'task', 'INSERT', 'true', 'task.accepted',
        '{task_id,state,payload_digest}', 'true');
    PERFORM actonce.audit_require('audit_task_state', 'task', 'UPDATE',
        '(OLD.state, OLD.reason) IS DISTINCT FROM (NEW.state, NEW.reason)', 'task.', '{task_id,state,reason,detail}',
        'state <> ''queued''');
    PERFORM actonce.audit_require('audit_task_cancel', 'task', 'UPDATE', 'NEW.cancel_requested AND NOT OLD.cancel_requested',
        'task.cancel_requested', '{task_id}', 'cancel_requested');
    PERFORM actonce.audit_require('audit_plan', 'plan', 'INSERT', 'true', 'task.planned', '{task_id,digest}', 'true');
    PERFORM actonce.audit_require('audit_contract', 'contract', 'INSERT', 'true', 'contract.registered',
        '{digest,name,version}', 'true');
    PERFORM actonce.audit_require('audit_acknowledgement', 'acknowledgement', 'INSERT', 'true', 'acknowledgement.received',
        '{ack_id,destination,action,epoch,attempt,object_id,state_before,contradicts}', 'true');
    PERFORM actonce.audit_require('audit_hold_opened', 'hold', 'INSERT', 'true', 'hold.opened',
        '{hold_id,destination,action,step,reason,words}', 'true');
    PERFORM actonce.audit_require('audit_hold_reason', 'hold', 'UPDATE', '(OLD.reason, OLD.words) IS DISTINCT FROM (NEW.reason, NEW.words)',
        'hold.reason',
        '{hold_id,reason,words}', NULL);
    PERFORM actonce.audit_require('audit_hold_closed', 'hold', 'UPDATE', 'OLD.closed_at IS NULL AND NEW.closed_at IS NOT NULL',
        'hold.closed', '{hold_id,destination,action,step,closed_by}', 'closed_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_decision_recorded', 'decision', 'INSERT', 'true', 'decision.recorded',
        '{decision_id,destination,action,decision,name,reason,evidence,object_id,expected_epoch,expected_version,residual_risk}',
        'true');
    PERFORM actonce.audit_require('audit_decision_consumed', 'decision', 'UPDATE', 'OLD.result IS NULL AND NEW.result IS NOT NULL',
        'decision.consumed', '{decision_id,destination,action,decision,result}', 'result IS NOT NULL');
    PERFORM actonce.audit_require('audit_page_opened', 'page', 'INSERT', 'true', 'page.opened',
        '{page_id,incident,reason,severity}', 'true');
    PERFORM actonce.audit_require('audit_page_changed', 'page', 'UPDATE',
        '(OLD.reason, OLD.severity, OLD.title) IS DISTINCT FROM (NEW.reason, NEW.severity, NEW.title)', 'page.changed',
        '{page_id,incident,reason,severity}', NULL);
    PERFORM actonce.audit_require('audit_page_acknowledged', 'page', 'UPDATE',
        'OLD.acknowledged_at IS NULL AND NEW.acknowledged_at IS NOT NULL', 'page.acknowledged',
        '{page_id,incident,acknowledged_by}', 'acknowledged_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_page_closed', 'page', 'UPDATE', 'OLD.closed_at IS NULL AND NEW.closed_at IS NOT NULL',
        'page.closed', '{page_id,incident}', 'closed_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_identity', 'identity', 'UPDATE',
        '(OLD.restore_epoch, OLD.quarantined) IS DISTINCT FROM (NEW.restore_epoch, NEW.quarantined)', 'ledger.epoch',
        '{ledger_id,restore_epoch,quarantined}', NULL);
END $$;

CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.audit_cursor
    FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted();
