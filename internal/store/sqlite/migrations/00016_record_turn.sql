-- +goose Up
-- The records of a Turn by its name, newest last: the comments and scores of people name only the Turn.
CREATE INDEX turn_record_turn ON turn_record (namespace, turn, completed, uid);

-- +goose Down
DROP INDEX turn_record_turn;
