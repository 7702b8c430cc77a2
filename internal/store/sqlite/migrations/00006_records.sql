-- +goose Up
-- One row per Turn that has ended. It remains when the journal of the Turn is purged.
CREATE TABLE turn_record (
    uid       TEXT    PRIMARY KEY,
    namespace TEXT    NOT NULL,
    turn      TEXT    NOT NULL,
    agent     TEXT    NOT NULL,
    session   TEXT    NOT NULL,
    requester TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    completed INTEGER NOT NULL, -- microseconds since 1970, UTC
    details   TEXT    NOT NULL, -- JSON
    feedback  TEXT    NOT NULL DEFAULT '[]' -- JSON
) WITHOUT ROWID;
CREATE INDEX turn_record_completed ON turn_record (completed, uid);
CREATE INDEX turn_record_namespace ON turn_record (namespace, completed, uid);

-- +goose Down
DROP TABLE turn_record;
