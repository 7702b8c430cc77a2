-- +goose Up
-- The table may be large by now, so there is no time limit.
SET LOCAL statement_timeout = 0;
-- The records with a comment: the comment is deleted with its Turn, which may have no journal.
CREATE INDEX capstan_record_commented ON capstan_record (completed, uid COLLATE "C")
    WHERE position('"comment":"'::bytea IN feedback) > 0;

-- +goose Down
DROP INDEX capstan_record_commented;
