-- +goose Up
-- What the work that follows the end of a Turn has used, in JSON: the estimate of the request that is under way, and
-- the sums of those that have ended.
ALTER TABLE task ADD COLUMN open TEXT NOT NULL DEFAULT 'null';
ALTER TABLE turn_record ADD COLUMN expenses TEXT NOT NULL DEFAULT 'null';

-- +goose Down
ALTER TABLE turn_record DROP COLUMN expenses;
ALTER TABLE task DROP COLUMN open;
