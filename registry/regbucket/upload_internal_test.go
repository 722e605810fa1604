package regbucket

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/krmcat/krmcat/registry/regstore"
)

func testStore() *Store {
	return &Store{opts: Options{UploadTTL: time.Hour}, cache: newCache(1 << 20), secret: []byte("0123456789abcdef0123456789abcdef")}
}

// Nobody but a server of the bucket writes an id that is accepted, and what is
// accepted is written as it was.
func FuzzParseID(f *testing.F) {
	s := testStore()
	u := &upload{name: strings.Repeat("A", nameBytes), began: time.Now(), chunks: 2, size: 5, hash: sha256.New()}
	_, _ = u.hash.Write([]byte("hello")) // never fails
	id, err := s.id("a/b", u)
	if err != nil {
		f.Fatal(err)
	}
	fresh, err := s.StartUpload(f.Context(), "a/b")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{id, fresh, "", "!", id[1:], strings.Repeat("A", 100)} {
		f.Add(seed)
	}
	known := map[string]bool{id: true, fresh: true}
	f.Fuzz(func(t *testing.T, in string) {
		if _, err := s.parseID("a/c", in); !errors.Is(err, regstore.ErrUploadUnknown) {
			t.Errorf("%q is accepted in another repository", in)
		}
		u, err := s.parseID("a/b", in)
		if err != nil {
			if !errors.Is(err, regstore.ErrUploadUnknown) || known[in] {
				t.Errorf("%q: %v", in, err)
			}
			return
		}
		again, err := s.id("a/b", u)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := base64.RawURLEncoding.DecodeString(in)     // it was accepted
		want, _ := base64.RawURLEncoding.DecodeString(again) // it was written here
		if string(got) != string(want) {
			t.Errorf("%q comes back as %q", in, again)
		}
	})
}

func TestUploadExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := testStore()
		id, err := s.StartUpload(t.Context(), "a/b")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		if _, err := s.parseID("a/b", id); err != nil {
			t.Errorf("after 59 minutes: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := s.parseID("a/b", id); !errors.Is(err, regstore.ErrUploadUnknown) {
			t.Errorf("after 61 minutes: got %v, want ErrUploadUnknown", err)
		}
	})
}

func TestCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(10_000)
		has := func(key string, want bool) {
			t.Helper()
			if _, _, ok := c.get(key); ok != want {
				t.Errorf("%s: got %v, want %v", key, ok, want)
			}
		}
		c.put("c:a", 1, 1000, time.Minute)
		c.put("s:a", 1, 1000, time.Second)
		c.put("c:never", 1, 1000, 0)
		has("c:a", true)
		has("s:a", true)
		has("c:never", false)
		time.Sleep(2 * time.Second)
		has("c:a", true)
		has("s:a", false)
		time.Sleep(time.Minute)
		has("c:a", false)
		if c.room != 10_000 || len(c.entries) != 0 || c.order.Len() != 0 {
			t.Errorf("an empty cache has room for %d, and %d entries", c.room, len(c.entries))
		}
		// What was used last stays.
		for _, k := range []string{"a", "b", "c"} {
			c.put(k, k, 3000, time.Minute)
		}
		has("a", true)
		c.put("d", "d", 3000, time.Minute)
		has("a", true)
		has("b", false)
		has("d", true)
		c.put("large", "", 20_000, time.Minute)
		has("large", false)
		c.put("c:x", 1, 1, time.Minute)
		c.put("s:x", 1, 1, time.Minute)
		c.forget("x")
		has("c:x", false)
		has("s:x", false)
	})
}
