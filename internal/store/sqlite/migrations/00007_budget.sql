-- +goose Up
-- One row for each budget and period. Costs are decimals. The reserved columns are the sums of the open reservations.
CREATE TABLE budget (
    budget_uid      TEXT    NOT NULL,
    start_at        INTEGER NOT NULL, -- seconds since 1970, UTC
    end_at          INTEGER NOT NULL,
    turns           INTEGER NOT NULL DEFAULT 0,
    tokens          INTEGER NOT NULL DEFAULT 0,
    cost            TEXT    NOT NULL DEFAULT '0',
    unpriced        INTEGER NOT NULL DEFAULT 0, -- requests whose cost is unknown
    reserved_tokens INTEGER NOT NULL DEFAULT 0,
    reserved_cost   TEXT    NOT NULL DEFAULT '0',
    PRIMARY KEY (budget_uid, start_at, end_at)
) WITHOUT ROWID;
CREATE INDEX budget_end ON budget (end_at);

-- The reservations of the one request that a Turn may have sent and whose end is not in its journal.
CREATE TABLE budget_hold (
    turn_uid         TEXT    NOT NULL,
    budget_uid       TEXT    NOT NULL,
    start_at         INTEGER NOT NULL,
    end_at           INTEGER NOT NULL,
    currency         TEXT    NOT NULL, -- of the budget
    tokens           INTEGER NOT NULL,
    cost             TEXT    NOT NULL,
    unknown_tokens   INTEGER NOT NULL, -- charged if the end of the request stays unknown
    unknown_cost     TEXT    NOT NULL,
    unknown_currency TEXT    NOT NULL, -- empty if that cost is unknown
    PRIMARY KEY (turn_uid, budget_uid, start_at, end_at)
) WITHOUT ROWID;
CREATE INDEX budget_hold_budget ON budget_hold (budget_uid, end_at);

-- +goose Down
DROP TABLE budget_hold;
DROP TABLE budget;
