-- +goose Up
-- expired_until is not 0 if the object is deleted because its time to live is over: its memories outlive it. The note
-- counts if the object is retired or forgotten by this time, in microseconds since 1970, which otherwise becomes 0.
-- forgotten is 1 if the object was deleted, and its journal is kept only because an unfinished Turn needs it: nothing
-- more is learned from it.
ALTER TABLE head ADD COLUMN expired_until INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE head DROP COLUMN forgotten;
ALTER TABLE head DROP COLUMN expired_until;
