-- +goose Up
-- The table may be large by now, so there is no time limit.
SET LOCAL statement_timeout = 0;
-- The records of a Turn by its name, newest last: the comments and scores of people name only the Turn.
CREATE INDEX capstan_record_turn ON capstan_record (namespace, turn, completed, uid COLLATE "C");

-- +goose Down
DROP INDEX capstan_record_turn;
