-- +goose Up
-- The Session of a task's Turn, and the user who asked for it. They are empty if they are not known.
ALTER TABLE capstan_task ADD COLUMN session text NOT NULL DEFAULT '';
ALTER TABLE capstan_task ADD COLUMN requester text NOT NULL DEFAULT '';
UPDATE capstan_task AS k SET session = r.session, requester = r.requester FROM capstan_record AS r
    WHERE k.state < 2 AND r.uid = split_part(k.uid, '/', 1);

-- +goose Down
ALTER TABLE capstan_task DROP COLUMN requester;
ALTER TABLE capstan_task DROP COLUMN session;
