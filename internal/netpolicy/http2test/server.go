// Package http2test has an HTTP/2 server for tests that can refuse a request.
package http2test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Response is the response to a request. If GoAway is true, the server tells the client instead that it has not
// processed the request and is closing the connection. If Reset is not 0, it resets the stream with this code instead.
type Response struct {
	Status      int
	ContentType string
	Body        string
	Reset       http2.ErrCode
	GoAway      bool
}

// Handler returns the response to a request, all of which has arrived. It must be safe for concurrent use.
type Handler func(method string, body []byte) Response

// Serve starts a server with TLS that only speaks HTTP/2. It returns the server's URL and its certificate in PEM. The
// server stops when the test ends.
func Serve(t *testing.T, handle Handler) (url, certificate string) {
	t.Helper()
	web := httptest.NewUnstartedServer(nil)
	web.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{http2.NextProtoTLS}}
	web.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		http2.NextProtoTLS: func(_ *http.Server, conn *tls.Conn, _ http.Handler) {
			defer conn.Close()          //nolint:errcheck // because the client notices it
			_ = serveConn(conn, handle) // the client has closed the connection
		},
	}
	web.StartTLS()
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	return web.URL, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}))
}

// serveConn serves a connection until an error occurs. The requests together must be smaller than the 64 KiB that a
// client may send without a window update.
func serveConn(conn io.ReadWriter, handle Handler) error {
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	frames := http2.NewFramer(conn, conn)
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	err := frames.WriteSettings()
	methods, bodies := map[uint32]string{}, map[uint32][]byte{}
	refused := uint32(math.MaxUint32) // requests from this stream on are ignored, as GOAWAY says
	for err == nil {
		var frame http2.Frame
		if frame, err = frames.ReadFrame(); err != nil {
			return err
		}
		id, isEnd := frame.Header().StreamID, false
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = frames.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = frames.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			methods[id], isEnd = f.PseudoValue("method"), f.StreamEnded()
		case *http2.DataFrame:
			bodies[id], isEnd = append(bodies[id], f.Data()...), f.StreamEnded()
		}
		if isEnd && id < refused {
			r := handle(methods[id], bodies[id])
			if r.GoAway {
				refused = id
			}
			err = respond(frames, id, r)
		}
	}
	return err
}

// respond sends a response.
func respond(frames *http2.Framer, id uint32, r Response) error {
	if r.GoAway {
		return frames.WriteGoAway(id-1, http2.ErrCodeNo, nil)
	}
	if r.Reset != 0 {
		return frames.WriteRSTStream(id, r.Reset)
	}
	var block bytes.Buffer
	headers := hpack.NewEncoder(&block)
	for _, h := range []hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(r.Status)}, {Name: "content-type", Value: r.ContentType},
	} {
		if err := headers.WriteField(h); err != nil {
			return err
		}
	}
	err := frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
	if err != nil {
		return err
	}
	return frames.WriteData(id, true, []byte(r.Body))
}
