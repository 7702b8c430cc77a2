-- +goose Up
-- Whose journal it is and how many bytes its entries and artifacts have. Journals of before have neither, and what is added to them. They
-- are in no index: an append changes bytes, and must stay on its page.
ALTER TABLE capstan_turn
    ADD COLUMN namespace text   NOT NULL DEFAULT '',
    ADD COLUMN bytes     bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE capstan_turn DROP COLUMN bytes, DROP COLUMN namespace;
