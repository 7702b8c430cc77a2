-- +goose Up
CREATE TABLE IF NOT EXISTS journal (
    turn_uid TEXT    NOT NULL,
    seq      INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    time     TEXT    NOT NULL, -- RFC 3339, UTC
    payload  TEXT    NOT NULL, -- JSON
    PRIMARY KEY (turn_uid, seq)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE journal;
