//go:build unix

// Package postgrestest runs a real PostgreSQL for tests: a temporary server, or the one in CAPSTAN_TEST_POSTGRES.
// It is for tests only.
package postgrestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The only user of a temporary server. The password is not secret; tests search output for it to prove that
// passwords are not shown.
const (
	user     = "capstan"
	password = "not-to-be-shown"
)

// watch is a shell script that stops the server when the standard input of the script closes. This happens at the
// latest when this process exits, even if it is killed.
const watch = `while read -r _; do :; done; "$1/pg_ctl" stop -D "$2/data" -m immediate -s; rm -rf "$2"`

// Server is a PostgreSQL server in a temporary directory. It listens on a Unix socket in that directory, and on no
// port.
type Server struct {
	bin, dir, settings string
	watcher            *exec.Cmd
	alive              io.Closer // closing it ends the watcher
}

// Start starts a server with the programs in the directory bin, and with settings such as "fsync=off". If this process
// runs as root, the server runs as another user, because PostgreSQL refuses to run as root. The caller must call Close;
// the server also stops when this process exits.
func Start(ctx context.Context, bin string, settings ...string) (s *Server, err error) {
	s, err = newServer(bin, settings...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	secret := filepath.Join(s.dir, "password")
	//nolint:gosec // because the server's user must read it, in a directory that no other user can enter
	if err := os.WriteFile(secret, []byte(password), 0o644); err != nil {
		return s, err
	}
	if err := s.run(ctx, "initdb", "-D", s.data(), "-U", user, "-A", "scram-sha-256", "--pwfile", secret,
		"-E", "UTF8", "--locale", "C", "--no-sync"); err != nil {
		return s, err
	}
	return s, s.Resume(ctx)
}

// newServer creates the directory of a server, which is removed when this process exits.
func newServer(bin string, settings ...string) (s *Server, err error) {
	dir, err := os.MkdirTemp("", "capstan-pg-")
	if err != nil {
		return nil, err
	}
	s = &Server{bin: bin, dir: dir}
	for _, setting := range append([]string{"listen_addresses=", "unix_socket_directories=" + dir}, settings...) {
		s.settings += " -c '" + setting + "'"
	}
	if err = chownToOwner(dir); err == nil {
		err = s.watch()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Login returns the name and the password of the server's only user.
func (s *Server) Login() (name, secret string) { return user, password }

// URL returns the URL of a database.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(user, password), Path: "/" + database,
		RawQuery: url.Values{"host": {s.dir}}.Encode(),
	}
	return u.String()
}

// Mode says how a server stops. Committed data is kept in both modes.
type Mode string

const (
	// Fast is an orderly stop: the server notifies clients and closes their sessions.
	Fast Mode = "fast"
	// Immediate is a crash: the server does not notify clients, and recovers when it is started again.
	Immediate Mode = "immediate"
)

// Stop stops the server and returns when it has stopped.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	return s.run(ctx, "pg_ctl", "stop", "-D", s.data(), "-m", string(mode), "-w", "-s")
}

// Resume starts the server after Stop, and returns when it accepts connections.
func (s *Server) Resume(ctx context.Context) error {
	err := s.run(ctx, "pg_ctl", "start", "-D", s.data(), "-l", s.log(), "-w", "-s", "-o", s.settings)
	if err != nil {
		text, _ := os.ReadFile(s.log()) //nolint:gosec // because newServer has created the directory
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// Dump writes a snapshot of a database into a file. It returns a function that replaces the content of the database
// with the snapshot.
func (s *Server) Dump(ctx context.Context, database string) (restore func(ctx context.Context) error, err error) {
	file := filepath.Join(s.dir, "dump")
	if err := s.run(ctx, "pg_dump", "-Fc", "-f", file, "-d", s.URL(database)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return s.run(ctx, "pg_restore", "--clean", "--if-exists", "--single-transaction", "-d", s.URL(database), file)
	}, nil
}

// Close stops the server and removes its directory. It may be called more than once.
func (s *Server) Close() error {
	var err error
	if s.watcher != nil {
		err = errors.Join(s.alive.Close(), s.watcher.Wait())
		s.watcher = nil
	}
	return errors.Join(err, os.RemoveAll(s.dir)) //nolint:gosec // because newServer has created the directory
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }
func (s *Server) log() string  { return filepath.Join(s.dir, "log") }

func (s *Server) watch() (err error) {
	//nolint:gosec,noctx // because the caller names the directory, and the script runs as long as the server
	watcher := exec.Command("/bin/sh", "-c", watch, "sh", s.bin, s.dir)
	watcher.Dir = s.dir
	watcher.SysProcAttr = unprivileged()
	watcher.SysProcAttr.Setpgid = true // otherwise Ctrl-C in the terminal would end the script before the server
	if s.alive, err = watcher.StdinPipe(); err != nil {
		return err
	}
	if err := watcher.Start(); err != nil {
		return err
	}
	s.watcher = watcher
	return nil
}

// run runs a PostgreSQL program as the server's user. It writes the output of the program to a file, because a server
// that the program starts keeps the output open.
func (s *Server) run(ctx context.Context, program string, args ...string) error {
	output, err := os.CreateTemp(s.dir, program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), args...) //nolint:gosec // because the caller names the directory
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, output, output
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = unprivileged()
	err = cmd.Run()
	if closing := output.Close(); err == nil {
		return closing
	}
	text, _ := os.ReadFile(output.Name()) //nolint:gosec // because newServer has created the directory
	return fmt.Errorf("failed to run %s: %w: %s", program, err, strings.TrimSpace(string(bytes.ToValidUTF8(text, nil))))
}
