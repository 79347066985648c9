-- Release: an accepted task waits in the ledger until it may go to Temporal. Consumers that are down, a pause, a rate
-- and a window keep it here; what is here can be counted, ordered and stopped.

ALTER TABLE actonce.task ADD COLUMN IF NOT EXISTS released_at timestamptz; -- NULL: it waits in the backlog
UPDATE actonce.task SET released_at = created_at WHERE released_at IS NULL AND (recorded OR state <> 'queued');
CREATE INDEX IF NOT EXISTS task_backlog ON actonce.task (task_type, created_at)
    WHERE released_at IS NULL AND state = 'queued';
CREATE INDEX IF NOT EXISTS task_outstanding ON actonce.task (task_type) WHERE released_at IS NOT NULL AND state = 'queued';

CREATE TABLE IF NOT EXISTS actonce.release (
    task_type   text PRIMARY KEY,
    paused      boolean NOT NULL DEFAULT false,
    rate_per_s  double precision CHECK (rate_per_s > 0), -- NULL: no limit
    window_max  integer NOT NULL DEFAULT 20 CHECK (window_max > 0), -- released and not yet taken by a worker
    tokens      double precision NOT NULL DEFAULT 0,     -- of the rate; at most one second's worth, at least one
    filled_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    version     bigint NOT NULL DEFAULT 1,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by  text,
    why         text
);
CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.release
    FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted();
