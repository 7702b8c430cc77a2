-- +goose Up
-- The meaning of a memory: 32-bit numbers, little-endian, and the name of the model that has made them. There is none
-- if space is empty.
ALTER TABLE memory ADD COLUMN space TEXT NOT NULL DEFAULT '';
ALTER TABLE memory ADD COLUMN vector BLOB;

-- +goose Down
ALTER TABLE memory DROP COLUMN vector;
ALTER TABLE memory DROP COLUMN space;
