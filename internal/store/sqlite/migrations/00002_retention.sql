-- +goose Up

-- A journal belongs to a Turn or a Session.
ALTER TABLE journal RENAME COLUMN turn_uid TO uid;
ALTER TABLE journal ADD COLUMN version INTEGER NOT NULL DEFAULT 1; -- version of the payload's format
ALTER TABLE journal ADD COLUMN artifact TEXT NOT NULL DEFAULT ''; -- the SHA-256 of the artifact that contains the payload

-- One row per journal: its last sequence number and epoch, and when its object was found to be deleted.
CREATE TABLE head (
    uid        TEXT    PRIMARY KEY,
    seq        INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    retired_at INTEGER          -- microseconds since 1970, UTC
) WITHOUT ROWID;
INSERT INTO head (uid, seq, epoch) SELECT uid, max(seq), max(epoch) FROM journal GROUP BY uid;
CREATE INDEX head_live ON head (uid) WHERE retired_at IS NULL;
CREATE INDEX head_retired ON head (retired_at, uid) WHERE retired_at IS NOT NULL;

-- With a rowid, which suits large rows better.
CREATE TABLE artifact (
    uid    TEXT    NOT NULL,
    sha256 TEXT    NOT NULL,
    bytes  INTEGER NOT NULL, -- size of the content
    data   BLOB    NOT NULL, -- the content, compressed
    PRIMARY KEY (uid, sha256)
);

-- The only row holds the totals, so that no query has to count.
CREATE TABLE total (
    journals  INTEGER NOT NULL,
    retired   INTEGER NOT NULL,
    entries   INTEGER NOT NULL,
    artifacts INTEGER NOT NULL
);
INSERT INTO total SELECT count(*), 0, coalesce(sum(seq), 0), 0 FROM head;

-- Rows are written here to check for free space, and deleted at once.
CREATE TABLE probe (
    id   INTEGER PRIMARY KEY,
    data BLOB NOT NULL
);

-- +goose Down
DROP TABLE probe;
DROP TABLE total;
DROP TABLE artifact;
DROP TABLE head;
ALTER TABLE journal DROP COLUMN artifact;
ALTER TABLE journal DROP COLUMN version;
ALTER TABLE journal RENAME COLUMN uid TO turn_uid;
