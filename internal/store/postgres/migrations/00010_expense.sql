-- +goose Up
-- What the work that follows the end of a Turn has used, in JSON: the estimate of the request that is under way, and
-- the sums of those that have ended.
ALTER TABLE capstan_task ADD COLUMN open bytea NOT NULL DEFAULT 'null';
ALTER TABLE capstan_record ADD COLUMN expenses bytea NOT NULL DEFAULT 'null';

-- +goose Down
ALTER TABLE capstan_record DROP COLUMN expenses;
ALTER TABLE capstan_task DROP COLUMN open;
