-- +goose Up
-- The position grows with each mark. The incarnation changes when the database is behind a known position, or has failed over to
-- a server that may lack entries. It is empty before the first mark.
ALTER TABLE capstan_store
    ADD COLUMN position    bigint  NOT NULL DEFAULT 0,
    ADD COLUMN incarnation text    NOT NULL DEFAULT '',
    ADD COLUMN server      text    NOT NULL DEFAULT '', -- the server of the last mark
    ADD COLUMN confirmed   boolean NOT NULL DEFAULT false; -- whether its commits waited for a standby

-- +goose Down
ALTER TABLE capstan_store DROP COLUMN confirmed, DROP COLUMN server, DROP COLUMN incarnation, DROP COLUMN position;
