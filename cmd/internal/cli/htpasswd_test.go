package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/krmcat/krmcat/registry/regserver"
)

func hashOf(t *testing.T, password string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(h)
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users.txt")
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Unix(1_000_000, 0)
	write("ci:"+hashOf(t, "secret")+"\n", now)
	p, err := newPasswords(file)
	if err != nil {
		t.Fatal(err)
	}
	p.now = func() time.Time { return now }
	p.checked = now
	check := func(user, password string, want bool) {
		t.Helper()
		for range 2 { // the second time from memory
			if got, err := p.check(user, password); err != nil || got != want {
				t.Errorf("check(%s, %s) = %v, %v", user, password, got, err)
			}
		}
	}
	check("ci", "secret", true)
	check("ci", "Secret", false)
	check("ci", "", false)
	check("other", "secret", false)
	check("ci", strings.Repeat("x", 100), false)

	// A file that changed is read again, and what was proven is forgotten.
	write("ci:"+hashOf(t, "changed")+"\n", now.Add(time.Second))
	now = now.Add(time.Minute)
	check("ci", "secret", false)
	check("ci", "changed", true)
	// One that is broken lets nobody in.
	write("nonsense", now.Add(2*time.Second))
	now = now.Add(time.Minute)
	if _, err := p.check("ci", "changed"); err == nil {
		t.Error("a broken file of users is no error")
	}
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(file, []byte("ci:"+hashOf(t, "secret")), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := newPasswords(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		action         regserver.Action
		user, password string
		header         string
		ok             bool
	}{
		{action: regserver.ActionPull, ok: true},
		{action: regserver.ActionList, ok: true},
		{action: regserver.ActionPush},
		{action: regserver.ActionDelete},
		{action: regserver.ActionPing}, // so that clients learn how to log in
		{action: regserver.ActionPing, user: "ci", password: "secret", ok: true},
		{action: regserver.ActionPush, user: "ci", password: "secret", ok: true},
		{action: regserver.ActionPush, user: "ci", password: "guess"},
		{action: regserver.ActionPull, user: "ci", password: "guess"},
		{action: regserver.ActionPush, header: "Bearer abc"},
		{action: regserver.ActionPull, header: "Basic !!!"},
	} {
		r, err := http.NewRequest(http.MethodGet, "http://example.com/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.user != "" {
			r.SetBasicAuth(c.user, c.password)
		}
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		err = p.authorize(r, regserver.Access{Repository: "a", Action: c.action})
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A file of users is read, or refused with its line; hashes that are kept can
// be used.
func FuzzParseUsers(f *testing.F) {
	f.Add("ci:$2a$06$.PRQY7TBvDXmyFKjzUNZv.dfcgM4BPw23QMzvHy6Sv9y7rVvUKCau\n# comment\n")
	f.Add("a:b")
	f.Add(":")
	f.Fuzz(func(t *testing.T, s string) {
		users, err := parseUsers("users.txt", []byte(s))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "users.txt") {
				t.Errorf("error %q does not name the file", err)
			}
			return
		}
		for u, h := range users {
			if _, err := bcrypt.Cost(h); err != nil || u == "" || strings.ContainsAny(u, ":\n") {
				t.Errorf("user %q with hash %q", u, h)
			}
		}
	})
}
