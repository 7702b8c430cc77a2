-- +goose Up
-- Whose journal it is and how many bytes its entries and artifacts have. Journals of before have neither, and what is added to them.
ALTER TABLE head ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE head ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE head DROP COLUMN bytes;
ALTER TABLE head DROP COLUMN namespace;
