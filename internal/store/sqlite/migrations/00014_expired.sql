-- +goose Up
-- expired is 1 if the object is deleted because its time to live is over: its memories outlive it. forgotten is 1 if the
-- object was deleted, and its journal is kept only because an unfinished Turn needs it: nothing more is learned from it.
ALTER TABLE head ADD COLUMN expired INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE head DROP COLUMN forgotten;
ALTER TABLE head DROP COLUMN expired;
