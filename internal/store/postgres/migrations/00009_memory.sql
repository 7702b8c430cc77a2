-- +goose Up
-- The kind of the work. uid is the key of the task: the UID of the Turn, and the kind behind a slash unless it is an
-- evaluation.
ALTER TABLE capstan_task ADD COLUMN kind text NOT NULL DEFAULT 'evaluation';

-- What was learned from Turns. Times are in microseconds since 1970, UTC.
CREATE TABLE capstan_memory (
    id              text     PRIMARY KEY,
    owner           text     NOT NULL, -- the key of the Session or the user
    namespace       text     NOT NULL,
    agent           text     NOT NULL,
    scope           text     NOT NULL,
    requester       text     NOT NULL,
    session         text     NOT NULL,
    session_uid     text     NOT NULL,
    turn            text     NOT NULL,
    turn_uid        text     NOT NULL,
    text            text     NOT NULL,
    words           tsvector NOT NULL, -- without positions
    confidence      integer  NOT NULL,
    model           text     NOT NULL,
    learned_at      bigint   NOT NULL,
    expires_at      bigint   NOT NULL,
    turn_expires_at bigint   NOT NULL -- 0 if the Turn has no time to live
);
CREATE INDEX capstan_memory_owner ON capstan_memory (owner, learned_at, id COLLATE "C");
CREATE INDEX capstan_memory_namespace ON capstan_memory (namespace, learned_at, id COLLATE "C");
CREATE INDEX capstan_memory_learned ON capstan_memory (learned_at, id COLLATE "C");
CREATE INDEX capstan_memory_turn ON capstan_memory (turn_uid);
CREATE INDEX capstan_memory_session ON capstan_memory (session_uid) WHERE session_uid <> '';
CREATE INDEX capstan_memory_expires ON capstan_memory (expires_at);
CREATE INDEX capstan_memory_words ON capstan_memory USING gin (words);

-- How Turns went. A row is deleted with its Turn or Session.
CREATE TABLE capstan_observation (
    turn_uid    text   PRIMARY KEY,
    namespace   text   NOT NULL,
    agent       text   NOT NULL,
    turn        text   NOT NULL,
    session     text   NOT NULL,
    session_uid text   NOT NULL,
    requester   text   NOT NULL,
    ended_at    bigint NOT NULL, -- microseconds since 1970, UTC
    details     bytea  NOT NULL -- JSON
);
CREATE INDEX capstan_observation_agent ON capstan_observation (namespace, agent, ended_at, turn_uid COLLATE "C");
CREATE INDEX capstan_observation_session ON capstan_observation (session_uid) WHERE session_uid <> '';

-- +goose Down
DROP TABLE capstan_observation;
DROP TABLE capstan_memory;
ALTER TABLE capstan_task DROP COLUMN kind;
