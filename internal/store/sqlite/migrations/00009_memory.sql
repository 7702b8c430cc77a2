-- +goose Up
-- The kind of the work. uid is the key of the task: the UID of the Turn, and the kind behind a slash unless it is an
-- evaluation.
ALTER TABLE task ADD COLUMN kind TEXT NOT NULL DEFAULT 'evaluation';

-- What was learned from Turns. Times are in microseconds since 1970, UTC.
CREATE TABLE memory (
    number          INTEGER PRIMARY KEY,
    id              TEXT    NOT NULL UNIQUE,
    owner           TEXT    NOT NULL, -- the key of the Session or the user
    namespace       TEXT    NOT NULL,
    agent           TEXT    NOT NULL,
    scope           TEXT    NOT NULL,
    requester       TEXT    NOT NULL,
    session         TEXT    NOT NULL,
    session_uid     TEXT    NOT NULL,
    turn            TEXT    NOT NULL,
    turn_uid        TEXT    NOT NULL,
    text            TEXT    NOT NULL,
    words           TEXT    NOT NULL, -- separated by spaces
    confidence      INTEGER NOT NULL,
    model           TEXT    NOT NULL,
    learned_at      INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    turn_expires_at INTEGER NOT NULL -- 0 if the Turn has no time to live
);
CREATE INDEX memory_owner ON memory (owner, learned_at, id);
CREATE INDEX memory_namespace ON memory (namespace, learned_at, id);
CREATE INDEX memory_learned ON memory (learned_at, id);
CREATE INDEX memory_turn ON memory (turn_uid);
CREATE INDEX memory_session ON memory (session_uid) WHERE session_uid <> '';
CREATE INDEX memory_expires ON memory (expires_at);

-- The index contains the owner, so that a search reads the entries of one owner only. secure-delete removes deleted
-- words from the index at once.
CREATE VIRTUAL TABLE memory_index USING fts5 (
    owner, words, content='memory', content_rowid='number', detail=column,
    tokenize="unicode61 remove_diacritics 0 categories 'L* N* M*'"
);
INSERT INTO memory_index (memory_index, rank) VALUES ('secure-delete', 1);
-- +goose StatementBegin
CREATE TRIGGER memory_inserted AFTER INSERT ON memory BEGIN
    INSERT INTO memory_index (rowid, owner, words) VALUES (new.number, new.owner, new.words);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER memory_deleted AFTER DELETE ON memory BEGIN
    INSERT INTO memory_index (memory_index, rowid, owner, words) VALUES ('delete', old.number, old.owner, old.words);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER memory_updated AFTER UPDATE OF owner, words ON memory BEGIN
    INSERT INTO memory_index (memory_index, rowid, owner, words) VALUES ('delete', old.number, old.owner, old.words);
    INSERT INTO memory_index (rowid, owner, words) VALUES (new.number, new.owner, new.words);
END;
-- +goose StatementEnd

-- How Turns went. A row is deleted with its Turn or Session.
CREATE TABLE observation (
    turn_uid    TEXT    PRIMARY KEY,
    namespace   TEXT    NOT NULL,
    agent       TEXT    NOT NULL,
    turn        TEXT    NOT NULL,
    session     TEXT    NOT NULL,
    session_uid TEXT    NOT NULL,
    requester   TEXT    NOT NULL,
    ended_at    INTEGER NOT NULL, -- microseconds since 1970, UTC
    details     TEXT    NOT NULL -- JSON
) WITHOUT ROWID;
CREATE INDEX observation_agent ON observation (namespace, agent, ended_at, turn_uid);
CREATE INDEX observation_session ON observation (session_uid) WHERE session_uid <> '';

-- +goose Down
DROP TABLE observation;
DROP TABLE memory_index;
DROP TABLE memory;
ALTER TABLE task DROP COLUMN kind;
