-- +goose Up
-- The only row identifies the store. A copy of the file has the same ID.
CREATE TABLE store (
    id TEXT NOT NULL
);
INSERT INTO store (id) VALUES (lower(hex(randomblob(16))));

-- +goose Down
DROP TABLE store;
