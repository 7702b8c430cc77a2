-- +goose Up
-- The latest end of a Turn whose record was deleted because of its age or its number, for each namespace.
CREATE TABLE capstan_record_deleted (
    namespace text COLLATE "C" PRIMARY KEY,
    until     timestamptz NOT NULL
);

-- +goose Down
DROP TABLE capstan_record_deleted;
