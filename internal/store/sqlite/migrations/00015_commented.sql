-- +goose Up
-- The records with a comment: the comment is deleted with its Turn, which may have no journal.
CREATE INDEX turn_record_commented ON turn_record (completed, uid) WHERE instr(feedback, '"comment":"') > 0;

-- +goose Down
DROP INDEX turn_record_commented;
