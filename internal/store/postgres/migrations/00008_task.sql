-- +goose Up
-- The work that follows the end of a Turn. A row remains for some time after the work has ended, because it counts for
-- the limits of the Agent. Times are in microseconds since 1970, UTC.
CREATE TABLE capstan_task (
    uid        text    PRIMARY KEY, -- of the Turn
    namespace  text    NOT NULL COLLATE "C",
    turn       text    NOT NULL,
    agent      text    NOT NULL,
    created_at bigint  NOT NULL,
    state      integer NOT NULL DEFAULT 0, -- 0: the work is not done, 1: it is done, 2: its result is published
    due_at     bigint  NOT NULL, -- the end of the claim or of the delay
    claim      bigint  NOT NULL DEFAULT 0,
    attempts   bigint  NOT NULL DEFAULT 0,
    begun_at   bigint  NOT NULL DEFAULT 0, -- the newest attempt, or 0
    tokens     bigint  NOT NULL DEFAULT 0, -- used and reserved
    reserved   bigint  NOT NULL DEFAULT 0, -- the part of tokens that is reserved
    ended_at   bigint  NOT NULL DEFAULT 0,
    result     bytea   NOT NULL DEFAULT '' -- JSON
) WITH (fillfactor = 70);
CREATE INDEX capstan_task_due ON capstan_task (namespace, due_at) WHERE state < 2;
CREATE INDEX capstan_task_begun ON capstan_task (namespace, agent, begun_at);
CREATE INDEX capstan_task_ended ON capstan_task (ended_at) WHERE state = 2;

ALTER TABLE capstan_record ADD COLUMN evaluations bytea NOT NULL DEFAULT 'null'; -- JSON

-- +goose Down
ALTER TABLE capstan_record DROP COLUMN evaluations;
DROP TABLE capstan_task;
