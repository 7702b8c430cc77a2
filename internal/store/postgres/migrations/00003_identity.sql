-- +goose Up
-- The only row identifies the store. A copy of the database has the same ID.
CREATE TABLE capstan_store (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    id     text    NOT NULL
);
INSERT INTO capstan_store (id) VALUES (gen_random_uuid()::text);

-- +goose Down
DROP TABLE capstan_store;
