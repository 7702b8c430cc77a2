-- +goose Up

-- One row a Turn: its last place and epoch. Whoever appends must move it, so it orders the writers of a Turn.
CREATE TABLE capstan_turn (
    turn_uid text   PRIMARY KEY,
    seq      bigint NOT NULL,
    epoch    bigint NOT NULL
) WITH (fillfactor = 70); -- room for new versions of a row on its own page

CREATE TABLE capstan_journal (
    turn_uid text   NOT NULL,
    seq      bigint NOT NULL,
    epoch    bigint NOT NULL,
    kind     text   NOT NULL,
    time     text   NOT NULL, -- RFC 3339, UTC; timestamptz would drop the nanoseconds
    payload  bytea  NOT NULL, -- JSON as it came; jsonb would change it and refuse \u0000
    PRIMARY KEY (turn_uid, seq)
);

-- +goose Down
DROP TABLE capstan_journal;
DROP TABLE capstan_turn;
