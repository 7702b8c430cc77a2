package mcp

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCountElements(t *testing.T) {
	for text, want := range map[string]int{
		`[]`: 0, "[ \n\t]": 0, `[ 1]`: 1, `[[]]`: 1, `[1]`: 1, `[1,2]`: 2, `[[1,2],{"a":[3,4],"b":5}]`: 2, `["a,b","\\\"],[",3]`: 3,
		`{"a":[1,2]}`: 0, `null`: 0, `"[,,,]"`: 0,
		"[" + strings.Repeat("1,", 2*maxElements) + "1]": maxElements + 1,
	} {
		if !json.Valid([]byte(text)) {
			t.Fatalf("%.40s is no JSON", text)
		}
		if got := countElements([]byte(text)); got != want {
			t.Errorf("countElements(%.40s) = %d, want %d", text, got, want)
		}
	}
}

// TestManyElementsTakeNoMemory checks that a message with millions of small values takes little more memory than its
// text, wherever the values are.
func TestManyElementsTakeNoMemory(t *testing.T) {
	const most = 3 * MaxResponseBytes
	list := "[" + strings.Repeat("{},", MaxResponseBytes/3-100) + "{}]"
	for name, tc := range map[string]struct {
		message string
		decode  func(data []byte) error
		want    error
	}{
		"parts of a result": {`{"jsonrpc":"2.0","id":1,"result":{"content":` + list + `}}`, func(data []byte) error {
			_, err := (&exchange{response: data}).decode(&wireResult{})
			return err
		}, errElements},
		"tools": {`{"jsonrpc":"2.0","id":1,"result":{"tools":` + list + `}}`, func(data []byte) error {
			_, err := (&exchange{response: data}).decode(&wirePage{})
			return err
		}, errElements},
		"an ID": {`{"jsonrpc":"2.0","id":` + list + `,"result":{}}`, func(data []byte) error {
			_, err := decodeEnvelope(t.Context(), data)
			return err
		}, errProtocol},
		"capabilities": {`{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"experimental":{"x":` + list + `}}}}`, func(data []byte) error {
			if got := reduce(data); len(got) > maxMember {
				t.Errorf("the SDK gets %d bytes", len(got))
			}
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(tc.message)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := tc.decode(data)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, tc.want) {
				t.Errorf("decode: %v, want %v", err, tc.want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > most {
				t.Errorf("a message of %d bytes took %d bytes of memory, want at most %d", len(data), used, most)
			}
		})
	}
}

// TestReduce checks that only large members that are not texts are left out.
func TestReduce(t *testing.T) {
	long, large := strings.Repeat("x", 2*maxMember), `{"x":["`+strings.Repeat(`a","`, maxMember)+`"]}`
	for name, tc := range map[string]struct{ message, want string }{
		"short": {`{"id":1,"result":{"capabilities":{"tools":{}}}}`, `{"id":1,"result":{"capabilities":{"tools":{}}}}`},
		"a text": {
			`{"jsonrpc":"2.0","id":1,"result":{"instructions":"` + long + `"}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"instructions":"` + long + `"}}`,
		},
		"a list": {
			`{"jsonrpc":"2.0","id":1,"result":{"_meta":` + large + `,"serverInfo":{"name":"a"}}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"serverInfo":{"name":"a"}}}`,
		},
		"an error": {`{"error":{"code":1,"data":` + large + `}}`, `{"error":{"code":1,"data":` + large + `}}`},
	} {
		t.Run(name, func(t *testing.T) {
			var got, want any
			if err := errors.Join(json.Unmarshal(reduce([]byte(tc.message)), &got), json.Unmarshal([]byte(tc.want), &want)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("reduce (-want +got):\n%.500s", diff)
			}
		})
	}
}
