-- +goose Up
-- The position grows with each mark. The incarnation changes when the file is behind a known position.
ALTER TABLE store ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
ALTER TABLE store ADD COLUMN incarnation TEXT NOT NULL DEFAULT '1';

-- +goose Down
ALTER TABLE store DROP COLUMN incarnation;
ALTER TABLE store DROP COLUMN position;
