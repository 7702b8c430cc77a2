-- +goose Up
-- The namespace of a journal, and the bytes of its entries and artifacts. Older journals start with neither: only later
-- appends set the namespace and add bytes.
ALTER TABLE head ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE head ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE head DROP COLUMN bytes;
ALTER TABLE head DROP COLUMN namespace;
