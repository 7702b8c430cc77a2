// Package zone loads time zones only from a copy of the IANA database in the program. So the same name gives the
// same dates on every machine, whatever the machine's own database and $ZONEINFO contain.
package zone

import (
	"archive/zip"
	"bytes"
	_ "embed" // for the database
	"fmt"
	"io"
	"sync"
	"time"
)

// database is the IANA time zone database 2025c, which is in the public domain, as lib/time/zoneinfo.zip of the Go
// distribution contains it. To update it, copy that file from a newer Go.
//
//go:embed zoneinfo.zip
var database []byte

var files = sync.OnceValues(func() (*zip.Reader, error) {
	return zip.NewReader(bytes.NewReader(database), int64(len(database)))
})

// Load returns the time zone of an IANA name, such as Europe/Berlin or UTC. It fails if the database does not
// contain the name.
func Load(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	all, err := files()
	if err != nil {
		return nil, fmt.Errorf("failed to read the time zone database: %w", err)
	}
	file, err := all.Open(name)
	if err != nil {
		return nil, fmt.Errorf("failed to find time zone %q: %w", name, err)
	}
	defer file.Close() //nolint:errcheck // because nothing was written
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read time zone %q: %w", name, err)
	}
	return time.LoadLocationFromTZData(name, data)
}
