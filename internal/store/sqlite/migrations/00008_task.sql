-- +goose Up
-- The work that follows the end of a Turn. A row remains for some time after the work has ended, because it counts for
-- the limits of the Agent. Times are in microseconds since 1970, UTC.
CREATE TABLE task (
    uid        TEXT    PRIMARY KEY, -- of the Turn
    namespace  TEXT    NOT NULL,
    turn       TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    state      INTEGER NOT NULL DEFAULT 0, -- 0: the work is not done, 1: it is done, 2: its result is published
    due_at     INTEGER NOT NULL, -- the end of the claim or of the delay
    claim      INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    begun_at   INTEGER NOT NULL DEFAULT 0, -- the newest attempt, or 0
    tokens     INTEGER NOT NULL DEFAULT 0, -- used and reserved
    reserved   INTEGER NOT NULL DEFAULT 0, -- the part of tokens that is reserved
    ended_at   INTEGER NOT NULL DEFAULT 0,
    result     TEXT    NOT NULL DEFAULT '' -- JSON
) WITHOUT ROWID;
CREATE INDEX task_due ON task (namespace, due_at) WHERE state < 2;
CREATE INDEX task_begun ON task (namespace, agent, begun_at);
CREATE INDEX task_ended ON task (ended_at) WHERE state = 2;

ALTER TABLE turn_record ADD COLUMN evaluations TEXT NOT NULL DEFAULT 'null'; -- JSON

-- +goose Down
ALTER TABLE turn_record DROP COLUMN evaluations;
DROP TABLE task;
