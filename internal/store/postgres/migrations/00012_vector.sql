-- +goose Up
-- The meaning of a memory: 32-bit numbers, little-endian, and the name of the model that has made them. There is none
-- if space is empty. The numbers cannot be compressed.
ALTER TABLE capstan_memory ADD COLUMN space text NOT NULL DEFAULT '';
ALTER TABLE capstan_memory ADD COLUMN vector bytea;
ALTER TABLE capstan_memory ALTER COLUMN vector SET STORAGE EXTERNAL;

-- +goose Down
ALTER TABLE capstan_memory DROP COLUMN vector;
ALTER TABLE capstan_memory DROP COLUMN space;
