-- +goose Up
-- One row per Turn that has ended. It remains when the journal of the Turn is purged.
CREATE TABLE capstan_record (
    uid       text        PRIMARY KEY,
    namespace text        NOT NULL,
    turn      text        NOT NULL,
    agent     text        NOT NULL,
    session   text        NOT NULL,
    requester text        NOT NULL,
    reason    text        NOT NULL,
    completed timestamptz NOT NULL,
    details   bytea       NOT NULL, -- unchanged JSON; jsonb would refuse \u0000
    feedback  bytea       NOT NULL DEFAULT '[]' -- JSON
);
CREATE INDEX capstan_record_completed ON capstan_record (completed, uid COLLATE "C");
CREATE INDEX capstan_record_namespace ON capstan_record (namespace, completed, uid COLLATE "C");

-- +goose Down
DROP TABLE capstan_record;
