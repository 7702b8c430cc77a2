package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/store/schema"
)

//go:embed migrations/*.sql
var migrations embed.FS

// versions is the table of the applied migrations. Its name starts with capstan_, because other programs may use the
// same database.
const versions = "capstan_schema_version"

// maxConns is the maximum number of connections of a process, unless the URL has a pool_max_conns. Each append
// holds a connection while the server flushes to disk. The server combines the flushes of concurrent appends.
const maxConns = 16

// pingTimeout limits the check of a connection that was idle for a second or more.
const pingTimeout = 2 * time.Second

// session sets the timeouts of a session, and overrides defaults of the server that would break the contract of Append:
// a stricter isolation level would make concurrent appends fail, and an asynchronous commit could lose appends in a
// crash. Other values of synchronous_commit, such as remote_apply, stay. session sets these values, too, so that an
// open connection keeps its value if an administrator changes the server's value to off. It does not set the value
// local: otherwise open connections would not wait for standbys after a change to on, while standbyConfirms is true on
// a new connection. The keep-alives are those of dial, for the server: without them, the connections of a lost node
// would count for its max_connections for two hours.
//
// session also returns whether the server takes no writes, and an expression, in the same round trip: on a slow
// network, each round trip is a large part of the time to connect.
const session = `SELECT current_setting('transaction_read_only'), %[6]s,
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('statement_timeout', '%[1]dms', false),
    set_config('lock_timeout', '%[2]dms', false),
    set_config('idle_in_transaction_session_timeout', '%[3]dms', false),
    set_config('tcp_keepalives_idle', '%[4]d', false), set_config('tcp_keepalives_interval', '%[4]d', false),
    set_config('tcp_keepalives_count', '%[5]d', false),
    CASE current_setting('synchronous_commit')
        WHEN 'off' THEN set_config('synchronous_commit', 'on', false)
        WHEN 'local' THEN NULL
        ELSE set_config('synchronous_commit', current_setting('synchronous_commit'), false)
    END,
    %[7]s`

// sessionQuery returns the query session with an expression.
func sessionQuery(expression string) string {
	return fmt.Sprintf(session, readTimeout.Milliseconds(), lockTimeout.Milliseconds(), idleTimeout.Milliseconds(), keepAlive/time.Second,
		keepAlives, expression, withoutLimit("transaction_timeout"))
}

// withoutLimit returns an expression that sets a timeout of a session to 0, which means no limit, if the server has
// this setting. PostgreSQL has transaction_timeout since version 17. It would end a migration, which may take any time.
func withoutLimit(setting string) string {
	return `(SELECT set_config(name, '0', false) FROM pg_settings WHERE name = '` + setting + `')`
}

// checkEncoding returns an error if a database cannot store all texts. An empty encoding is unknown. A database with
// SQL_ASCII stores the bytes that it receives, which are UTF-8.
func checkEncoding(encoding string) error {
	switch encoding {
	case "UTF8", "SQL_ASCII", "":
		return nil
	}
	return fmt.Errorf("%w %s", errEncoding, encoding)
}

// errEncoding means that a database cannot store all texts.
var errEncoding = errors.New("the database cannot store all texts: create a database with CREATE DATABASE ... ENCODING 'UTF8' " +
	"TEMPLATE template0, and name it in the URL; the encoding of this database is")

// wantURL describes a valid URL in errors. The URL itself is not shown, because it may contain a password.
const wantURL = "want postgres://USER:PASSWORD@HOST:PORT/DATABASE, with %-escapes for : / ? # @ in the user and the password"

// configure returns the configuration of the pool for a URL. Its errors do not contain the URL.
func configure(databaseURL string) (*pgxpool.Config, error) {
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || hasUnescapedPassword(u) {
		return nil, errors.New("failed to read the URL of the journal's database (not shown, because it may contain a password): " +
			"" + wantURL)
	}
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("failed to read the URL of the journal's database (not shown, because it may contain a password)%s: %s",
			reason(err, u), wantURL)
	}
	if !u.Query().Has("pool_max_conns") {
		config.MaxConns = maxConns
	}
	config.PingTimeout = pingTimeout
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.PgConn().CustomData()[connectedKey] = time.Now() //nolint:forbidigo // because two times of this process are compared
		return nil
	}
	c := config.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	c.DialFunc = dial
	lookup := c.LookupFunc
	c.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookup(ctx, host)
		return addresses, netpolicy.WithShortage(err)
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "capstan"
	}
	return config, nil
}

// Target returns the destination of a URL for logs: the hosts with their ports, or the directory of a Unix socket,
// and the database. Neither the results nor the error contain a user or a password.
func Target(databaseURL string) (hosts []string, database string, err error) {
	config, err := configure(databaseURL)
	if err != nil {
		return nil, "", err
	}
	c := config.ConnConfig
	hosts = []string{address(c.Host, c.Port)}
	for _, other := range c.Fallbacks { // the fallbacks contain a host twice if it is tried with and without TLS
		if a := address(other.Host, other.Port); !slices.Contains(hosts, a) {
			hosts = append(hosts, a)
		}
	}
	return hosts, c.Database, nil
}

func address(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// hasUnescapedPassword reports whether the password of a URL probably contains an unescaped character, which ends the
// password too early. The driver would use the rest as a port or a database, and errors would show it.
func hasUnescapedPassword(u *url.URL) bool {
	return u.Fragment != "" || strings.Contains(u.EscapedPath()+u.RawQuery, "@")
}

// reason returns the driver's reason for rejecting a URL, or an empty string if the reason contains a secret.
func reason(err error, u *url.URL) string {
	cause := errors.Unwrap(err)
	if cause == nil {
		return ""
	}
	secrets := []string{u.String(), u.Query().Get("password"), u.Query().Get("sslpassword")}
	if password, ok := u.User.Password(); ok {
		secrets = append(secrets, password)
	}
	for _, secret := range secrets {
		if secret != "" && strings.Contains(cause.Error(), secret) {
			return ""
		}
	}
	return ": " + cause.Error()
}

// hidden finds the schema of the search_path that has the tables, and the first schema, in which new tables would be
// created.
const hidden = `SELECT n.nspname, current_schema() FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
	WHERE c.relname = $1 AND c.relkind = 'r' AND n.nspname = ANY(current_schemas(false))
	ORDER BY array_position(current_schemas(false), n.nspname) LIMIT 1`

// checkSchema returns an error if a schema without tables comes before the schema that has them, for example because a
// schema with the name of the user was created. An empty journal would be created there, and the processes that run
// would use it, too.
func checkSchema(ctx context.Context, pool *pgxpool.Pool) error {
	var has, first string
	err := pool.QueryRow(ctx, hidden, versions).Scan(&has, &first)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // the database is new
		return nil
	case err != nil || has == first:
		return err
	}
	return fmt.Errorf("schema %[1]q has the tables of a journal, but schema %[2]q comes before it in the search_path: to use the "+
		"tables of %[1]q, add the parameter search_path=%[1]s to the URL; for a new journal, add search_path=%[2]s", has, first)
}

// migrate applies the migrations in dir. Only one process migrates at a time; the others check once per second whether
// they can continue.
func migrate(ctx context.Context, pool *pgxpool.Pool, dir fs.FS) (err error) {
	if err := checkSchema(ctx, pool); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, uint64(openTimeout/time.Second)+1))
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, dir,
		goose.WithSessionLocker(boundedLocker{locker}), goose.WithTableName(versions))
	if err != nil {
		return err
	}
	return schema.Up(ctx, provider)
}

// boundedLocker bounds the wait for the lock by openTimeout, and not the migrations that follow.
type boundedLocker struct{ lock.SessionLocker }

// SessionLock takes the lock.
func (l boundedLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return l.SessionLocker.SessionLock(ctx, conn)
}
