-- The sweep of a restore: what every destination shows of us, compared with what the ledger knows; and its release.
-- See actonce/ledger/sweeping.py and actonce/ledger/quarantine.py.

CREATE TABLE IF NOT EXISTS actonce.sweep (
    epoch     integer NOT NULL REFERENCES actonce.restore,
    run       integer NOT NULL,
    since     timestamptz NOT NULL,            -- what the destinations are asked to show: everything of ours from then on
    began_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at   timestamptz,
    totals    jsonb,                           -- by destination; of a run that is done
    not_swept jsonb,                           -- destination → why nothing was listed there
    PRIMARY KEY (epoch, run)
);

-- How far each route has been read. A run that died goes on at the cursor.
CREATE TABLE IF NOT EXISTS actonce.sweep_route (
    epoch          integer NOT NULL,
    run            integer NOT NULL,
    destination    text NOT NULL,
    route          text NOT NULL,
    status         text NOT NULL DEFAULT 'reading', -- read, unavailable, looping
    cursor         text,                       -- of the next page; NULL: the first
    pages          integer NOT NULL DEFAULT 0,
    rows_received  bigint NOT NULL DEFAULT 0,
    declared_total bigint,
    totals_agree   boolean NOT NULL DEFAULT true, -- every page declared the same one
    as_of          timestamptz,
    beacon_at      timestamptz,
    error          text,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz,
    PRIMARY KEY (epoch, run, destination, route),
    FOREIGN KEY (epoch, run) REFERENCES actonce.sweep
);

-- Every effect of ours that a destination showed. What has no record and cannot be adopted is known here alone.
CREATE TABLE IF NOT EXISTS actonce.restore_effect (
    epoch        integer NOT NULL REFERENCES actonce.restore,
    destination  text NOT NULL,
    object_id    text NOT NULL,
    run          integer NOT NULL,             -- the last one that showed it
    route        text NOT NULL,
    marker       text NOT NULL,
    operation_id text,                         -- NULL: the marker is none that this system makes
    account      text NOT NULL,
    digest       text,
    committed_at timestamptz,
    problem      text,                         -- why it cannot be proven to be ours
    outcome      text NOT NULL DEFAULT 'conflict' CHECK (outcome IN ('matched', 'destination_only', 'conflict')),
    words        text,
    PRIMARY KEY (epoch, destination, object_id)
);
CREATE INDEX IF NOT EXISTS restore_effect_operation ON actonce.restore_effect (destination, operation_id);
CREATE INDEX IF NOT EXISTS restore_effect_open ON actonce.restore_effect (epoch, destination, object_id) WHERE outcome <> 'matched';

-- A person's act that lets a group of quarantined tasks go on.
CREATE TABLE IF NOT EXISTS actonce.restore_release (
    release_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    epoch      integer NOT NULL REFERENCES actonce.restore,
    what       text NOT NULL CHECK (what IN ('settled', 'resumable', 'held')),
    name       text NOT NULL,
    reason     text NOT NULL,
    press      text,                           -- chosen by the caller; NULL: it chose none
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    tasks      integer NOT NULL DEFAULT 0,     -- that it let go so far
    done_at    timestamptz                     -- no task of the group is left
);
CREATE UNIQUE INDEX IF NOT EXISTS restore_release_press ON actonce.restore_release (epoch, press);
ALTER TABLE actonce.restore ADD COLUMN IF NOT EXISTS close_reason text;
ALTER TABLE actonce.restore ADD COLUMN IF NOT EXISTS close_risk text; -- what was not known when it was closed

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['sweep', 'sweep_route', 'restore_effect', 'restore_release'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION actonce.nothing_is_deleted()', name);
    END LOOP;
END $$;

DO $$
BEGIN
    PERFORM actonce.audit_require('audit_swept', 'sweep', 'UPDATE', 'OLD.done_at IS NULL AND NEW.done_at IS NOT NULL',
        'restore.swept', '{epoch,run,totals,not_swept}', 'done_at IS NOT NULL');
    PERFORM actonce.audit_require('audit_restore_released', 'restore_release', 'INSERT', 'true', 'restore.released',
        '{release_id,epoch,what,name,reason}', 'true');
END $$;
