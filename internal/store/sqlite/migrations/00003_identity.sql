-- +goose Up
-- The one row names the store. A copy of the file has the same name.
CREATE TABLE store (
    id TEXT NOT NULL
);
INSERT INTO store (id) VALUES (lower(hex(randomblob(16))));

-- +goose Down
DROP TABLE store;
