-- +goose Up
-- The Session of a task's Turn, and the user who asked for it. They are empty if they are not known.
ALTER TABLE task ADD COLUMN session TEXT NOT NULL DEFAULT '';
ALTER TABLE task ADD COLUMN requester TEXT NOT NULL DEFAULT '';
UPDATE task SET session = r.session, requester = r.requester FROM turn_record AS r
    WHERE task.state < 2 AND r.uid = iif(instr(task.uid, '/') > 0, substr(task.uid, 1, instr(task.uid, '/') - 1), task.uid);

-- +goose Down
ALTER TABLE task DROP COLUMN requester;
ALTER TABLE task DROP COLUMN session;
