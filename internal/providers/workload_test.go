package providers_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// write writes a token like the kubelet: it writes the file into a new directory, and then replaces the link ..data.
func write(t *testing.T, dir, name, token string) {
	t.Helper()
	version := "..v" + token
	if err := os.MkdirAll(filepath.Join(dir, version, filepath.Dir(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, version, name), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(dir, "..next")
	if err := os.Symlink(version, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	top, _, _ := strings.Cut(name, "/")
	if err := os.Symlink(filepath.Join("..data", top), filepath.Join(dir, top)); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
}

// TestWorkloadToken checks that the token in a file is sent, in any protocol, and that a renewed token is sent soon.
func TestWorkloadToken(t *testing.T) {
	for _, protocol := range []v1alpha1.ProviderType{v1alpha1.ProviderTypeOpenAI, v1alpha1.ProviderTypeAnthropic} {
		t.Run(string(protocol), func(t *testing.T) {
			w, c := newFakeCluster(t, secretValue)
			url, sent := endpointOf(t)
			dir := t.TempDir()
			write(t, dir, "demo/gateway", "first-token")
			tokens, err := secrets.ParseWorkloadTokens(dir, []string{"demo/gateway=other.test", "demo/gateway=127.0.0.1"})
			if err != nil {
				t.Fatal(err)
			}
			c.SetWorkloadTokens(tokens)
			o := object(url)
			o.Spec.Type, o.Spec.CredentialsRef, o.Spec.WorkloadToken = protocol, nil, "gateway"
			if got := sent(mustGet(t, c, o)); got.Get("Authorization") != "Bearer first-token" || got.Get("X-Api-Key") != "" {
				t.Errorf("sent %v, want the first token alone", got)
			}
			write(t, dir, "demo/gateway", "second-token")
			w.set(func(w *fakeCluster) { w.now = w.now.Add(10 * time.Second) })
			if got := sent(mustGet(t, c, o)).Get("Authorization"); got != "Bearer second-token" {
				t.Errorf("sent %q, want the renewed token", got)
			}
		})
	}
}

// TestRefusedWorkloadTokens checks that an author of objects cannot make the manager read another file, or send a token
// elsewhere.
func TestRefusedWorkloadTokens(t *testing.T) {
	web := httptest.NewServer(nil)
	t.Cleanup(web.Close)
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(outside, []byte("token-of-the-manager"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"demo/gateway", "other/theirs", "demo/hidden"} {
		write(t, dir, name, "t-"+filepath.Base(name)) // each token replaces the tokens before it
	}
	write(t, dir, "demo/empty", "\n")
	if err := os.Symlink(outside, filepath.Join(dir, "..data", "demo", "link")); err != nil {
		t.Fatal(err)
	}
	tokens, err := secrets.ParseWorkloadTokens(dir, []string{
		"demo/elsewhere=llm.example.com", "demo/secure=https://127.0.0.1", "demo/missing=127.0.0.1", "demo/empty=127.0.0.1",
		"demo/link=127.0.0.1", "other/theirs=127.0.0.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"theirs":          `there is no workload token "theirs" for namespace "demo"`,
		"hidden":          `there is no workload token "hidden" for namespace "demo"`,
		"../other/theirs": `there is no workload token "../other/theirs" for namespace "demo"`,
		"elsewhere":       `the workload token "elsewhere" of namespace "demo" must not be sent to ` + web.URL,
		"secure":          `the workload token "secure" of namespace "demo" must not be sent to ` + web.URL,
		"missing":         `the file of the workload token "missing" of namespace "demo" cannot be read`,
		"link":            `the file of the workload token "link" of namespace "demo" cannot be read`,
		"empty":           `the file of the workload token "empty" of namespace "demo" is empty`,
	} {
		for _, offered := range []*secrets.WorkloadTokens{tokens, nil} {
			_, c := newFakeCluster(t, secretValue)
			c.SetWorkloadTokens(offered)
			o := object(web.URL)
			o.Spec.CredentialsRef, o.Spec.WorkloadToken = nil, name
			if offered == nil {
				want = fmt.Sprintf("the workload token %q cannot be used, because only the manager in a cluster has such "+
					"tokens: set credentialsRef", name)
			}
			_, err := c.Get(t.Context(), o)
			if offered == nil && strings.Contains(err.Error(), "--") {
				t.Errorf("%s: %v, want no flag, because the command line has none for it", name, err)
			}
			if _, ok := errors.AsType[*providers.SecretError](err); !ok || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want a *SecretError %q", name, err, want)
			}
		}
	}
	for _, entry := range []string{"", "gateway=a.test", "demo/gateway", "demo/gateway=", "demo/..=a.test", "demo/a/b=a.test", "demo/a=*"} {
		if _, err := secrets.ParseWorkloadTokens(dir, []string{entry}); err == nil {
			t.Errorf("the entry %q was accepted", entry)
		}
	}
}
