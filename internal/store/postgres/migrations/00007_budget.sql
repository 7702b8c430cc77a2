-- +goose Up
-- One row for each budget and period. Costs are decimals. The reserved columns are the sums of the open reservations.
CREATE TABLE capstan_budget (
    budget_uid      text    NOT NULL,
    start_at        bigint  NOT NULL, -- seconds since 1970, UTC
    end_at          bigint  NOT NULL,
    turns           bigint  NOT NULL DEFAULT 0,
    tokens          bigint  NOT NULL DEFAULT 0,
    cost            text    NOT NULL DEFAULT '0',
    unpriced        bigint  NOT NULL DEFAULT 0, -- requests whose cost is unknown
    reserved_tokens bigint  NOT NULL DEFAULT 0,
    reserved_cost   text    NOT NULL DEFAULT '0',
    PRIMARY KEY (budget_uid, start_at, end_at)
) WITH (fillfactor = 70);
CREATE INDEX capstan_budget_end ON capstan_budget (end_at);

-- The reservations of the one request that a Turn may have sent and whose end is not in its journal.
CREATE TABLE capstan_budget_hold (
    turn_uid         text    NOT NULL,
    budget_uid       text    NOT NULL,
    start_at         bigint  NOT NULL,
    end_at           bigint  NOT NULL,
    currency         text    NOT NULL, -- of the budget
    tokens           bigint  NOT NULL,
    cost             text    NOT NULL,
    unknown_tokens   bigint  NOT NULL, -- charged if the end of the request stays unknown
    unknown_cost     text    NOT NULL,
    unknown_currency text    NOT NULL, -- empty if that cost is unknown
    PRIMARY KEY (turn_uid, budget_uid, start_at, end_at)
) WITH (fillfactor = 70);
CREATE INDEX capstan_budget_hold_budget ON capstan_budget_hold (budget_uid, end_at);

-- +goose Down
DROP TABLE capstan_budget_hold;
DROP TABLE capstan_budget;
