-- +goose Up
-- The namespace of a journal, and the bytes of its entries and artifacts. Older journals start with neither: only
-- later appends set the namespace and add bytes. Neither column is in an index: an append changes bytes, and must stay on its page.
ALTER TABLE capstan_turn
    ADD COLUMN namespace text   NOT NULL DEFAULT '',
    ADD COLUMN bytes     bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE capstan_turn DROP COLUMN bytes, DROP COLUMN namespace;
