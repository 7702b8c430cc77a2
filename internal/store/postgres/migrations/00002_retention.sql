-- +goose Up

-- turn_uid is the UID of a Turn or a Session. The column keeps its name, so that processes of the previous version still work.
ALTER TABLE capstan_turn ADD COLUMN retired_at timestamptz; -- when its object was found to be deleted
ALTER TABLE capstan_journal
    ADD COLUMN version  integer NOT NULL DEFAULT 1, -- version of the payload's format
    ADD COLUMN artifact text    NOT NULL DEFAULT ''; -- the SHA-256 of the artifact that contains the payload

-- An append changes no column of these indexes, so it does not update them.
CREATE INDEX capstan_turn_live ON capstan_turn (turn_uid COLLATE "C") WHERE retired_at IS NULL;
CREATE INDEX capstan_turn_retired ON capstan_turn (retired_at, turn_uid) WHERE retired_at IS NOT NULL;

CREATE TABLE capstan_artifact (
    turn_uid text   NOT NULL,
    sha256   text   NOT NULL,
    bytes    bigint NOT NULL, -- size of the content
    data     bytea  NOT NULL, -- the content, compressed
    PRIMARY KEY (turn_uid, sha256)
);
ALTER TABLE capstan_artifact ALTER COLUMN data SET STORAGE EXTERNAL; -- the data is already compressed

-- +goose Down
DROP TABLE capstan_artifact;
DROP INDEX capstan_turn_retired;
DROP INDEX capstan_turn_live;
ALTER TABLE capstan_journal DROP COLUMN artifact, DROP COLUMN version;
ALTER TABLE capstan_turn DROP COLUMN retired_at;
