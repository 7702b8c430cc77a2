-- +goose Up

-- One row per Turn: its last sequence number and epoch. Each append updates the row, so the row orders the writers of a Turn.
CREATE TABLE capstan_turn (
    turn_uid text   PRIMARY KEY,
    seq      bigint NOT NULL,
    epoch    bigint NOT NULL
) WITH (fillfactor = 70); -- free space for new versions of a row on its own page

CREATE TABLE capstan_journal (
    turn_uid text   NOT NULL,
    seq      bigint NOT NULL,
    epoch    bigint NOT NULL,
    kind     text   NOT NULL,
    time     text   NOT NULL, -- RFC 3339, UTC; timestamptz would drop the nanoseconds
    payload  bytea  NOT NULL, -- unchanged JSON; jsonb would change it and refuse \u0000
    PRIMARY KEY (turn_uid, seq)
);

-- +goose Down
DROP TABLE capstan_journal;
DROP TABLE capstan_turn;
