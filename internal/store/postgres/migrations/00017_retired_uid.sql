-- +goose Up
-- The table may be large by now, so there is no time limit.
SET LOCAL statement_timeout = 0;
-- The pages of RetiredUIDs. An append changes no column of this index, so it does not update it.
CREATE INDEX capstan_turn_retired_uid ON capstan_turn (turn_uid COLLATE "C") WHERE retired_at IS NOT NULL;

-- +goose Down
DROP INDEX capstan_turn_retired_uid;
