-- +goose Up
-- The latest end of a Turn whose record was deleted because of its age or its number, for each namespace, in
-- microseconds since 1970.
CREATE TABLE record_deleted (
    namespace TEXT PRIMARY KEY,
    until     INTEGER NOT NULL
) WITHOUT ROWID;

-- +goose Down
DROP TABLE record_deleted;
