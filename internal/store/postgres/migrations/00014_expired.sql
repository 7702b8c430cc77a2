-- +goose Up
-- expired_until is set if the object is deleted because its time to live is over: its memories outlive it. The note
-- counts if the object is retired or forgotten by this time, which otherwise becomes NULL. forgotten is true if the
-- object was deleted, and its journal is kept only because an unfinished Turn needs it: nothing more is learned from it.
ALTER TABLE capstan_turn ADD COLUMN expired_until timestamptz;
ALTER TABLE capstan_turn ADD COLUMN forgotten boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE capstan_turn DROP COLUMN forgotten;
ALTER TABLE capstan_turn DROP COLUMN expired_until;
