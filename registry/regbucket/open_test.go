package regbucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/krmcat/krmcat/registry/regbucket"
	"github.com/krmcat/krmcat/registry/regtest"
)

// objects is the bucket behind a store, for tests that change what is in it.
type objects struct {
	t      testing.TB
	client *minio.Client
	bucket string
}

func objectsOf(t testing.TB, cfg regbucket.Options) *objects {
	t.Helper()
	client, err := minio.New(strings.TrimPrefix(cfg.Endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4(cfg.Credentials.AccessKey, cfg.Credentials.SecretKey, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return &objects{t, client, cfg.Bucket}
}

func (o *objects) put(key, content string) {
	o.t.Helper()
	if _, err := o.client.PutObject(o.t.Context(), o.bucket, key, strings.NewReader(content), int64(len(content)), minio.PutObjectOptions{DisableContentSha256: true}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *objects) remove(key string) {
	o.t.Helper()
	if err := o.client.RemoveObject(o.t.Context(), o.bucket, key, minio.RemoveObjectOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *objects) list(prefix string) []string {
	o.t.Helper()
	var keys []string
	for info := range o.client.ListObjects(o.t.Context(), o.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if info.Err != nil {
			o.t.Fatal(info.Err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// A storage that ignores conditions is refused before anything relies on
// them.
func TestUnconditionalStorage(t *testing.T) {
	t.Parallel()
	p, cfg := newProxy(t, fake(t))
	ignore := func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("If-None-Match")
		return false
	}
	p.mode.Store(&ignore)
	for range 2 {
		_, err := regbucket.Open(t.Context(), cfg)
		if !errors.Is(err, regbucket.ErrNotConditional) || !strings.Contains(err.Error(), "If-None-Match") {
			t.Errorf("got %v, want ErrNotConditional", err)
		}
	}
	p.mode.Store(nil)
	open(t, cfg)
	p.mode.Store(&ignore)
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, regbucket.ErrNotConditional) {
		t.Errorf("a bucket that is a registry's already: got %v, want ErrNotConditional", err)
	}
}

func TestOpenOthersBucket(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	o := objectsOf(t, cfg)
	o.put("photos/cat.jpg", "meow")
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, regbucket.ErrNotRegistry) || !strings.Contains(err.Error(), "photos/") {
		t.Errorf("a bucket with something else: got %v, want ErrNotRegistry", err)
	}
	cfg.Prefix = "registry/"
	open(t, cfg)
	cfg.Prefix = "old"
	o.put("old/layout", "krmcat registry bucket 7\nsecret\n")
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, regbucket.ErrNotRegistry) || !strings.Contains(err.Error(), "bucket 7") {
		t.Errorf("a later layout: got %v, want ErrNotRegistry", err)
	}
	o.put("old/layout", "krmcat registry bucket 1\nx\n")
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, regbucket.ErrNotRegistry) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged layout: got %v, want ErrNotRegistry", err)
	}
	cfg.Prefix = "new"
	cfg.MustExist = true
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, regbucket.ErrNotRegistry) {
		t.Errorf("MustExist: got %v, want ErrNotRegistry", err)
	}
	if got := o.list("new"); len(got) != 0 {
		t.Errorf("something was made: %v", got)
	}
}

func TestCreateBucket(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	cfg.Bucket = "another"
	if _, err := regbucket.Open(t.Context(), cfg); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	cfg.CreateBucket = true
	open(t, cfg)
	open(t, cfg)
}

// What only reads writes nothing.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	p, cfg := newProxy(t, fake(t))
	a := regtest.NewArtifact("application/vnd.example", nil, []byte("layer"))
	readOnly := cfg
	readOnly.ReadOnly = true
	if _, err := regbucket.Open(t.Context(), readOnly); !errors.Is(err, regbucket.ErrNotRegistry) {
		t.Errorf("an empty bucket: got %v, want ErrNotRegistry", err)
	}
	regtest.Put(t.Context(), t, open(t, cfg), repo, a, "v1")
	onlyRead := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	}
	p.mode.Store(&onlyRead)
	s := open(t, readOnly)
	if _, got, err := s.Manifest(t.Context(), repo, "v1"); err != nil || !bytes.Equal(got, a.Manifest) {
		t.Errorf("Manifest: %v", err)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "credentials")
	if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = key\naws_secret_access_key = hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		creds regbucket.Credentials
		want  string
	}{
		"none":       {regbucket.Credentials{}, "no credentials"},
		"half":       {regbucket.Credentials{AccessKey: "key"}, "not complete"},
		"no file":    {regbucket.Credentials{File: filepath.Join(dir, "none")}, "reading credentials from"},
		"no profile": {regbucket.Credentials{File: file, Profile: "other"}, "reading credentials from"},
		"file":       {regbucket.Credentials{File: file}, ""},
	} {
		cfg := cfg
		cfg.Credentials = c.creds
		s, err := regbucket.Open(t.Context(), cfg)
		if err == nil {
			_ = s.Close() // never fails
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	// However they are printed, keys do not show.
	c := regbucket.Credentials{AccessKey: "AKIA", SecretKey: "hush", SessionToken: "token"}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("", "credentials", c)
	s := fmt.Sprint(c) + fmt.Sprintf("%v %+v %#v", c, c, regbucket.Options{Credentials: c}) + b.String()
	for _, secret := range []string{"AKIA", "hush", "token"} {
		if strings.Contains(s, secret) {
			t.Errorf("%q shows in %s", secret, s)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cfg := fake(t)
	dir := t.TempDir()
	cfg.CAFile = filepath.Join(dir, "ca.pem")
	if _, err := regbucket.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "reading certificates") {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(cfg.CAFile, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := regbucket.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "holds none") {
		t.Errorf("no certificates: %v", err)
	}
	pem, secure := fakeTLS(t)
	if err := os.WriteFile(cfg.CAFile, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	secure.Attempts = 1
	if _, err := regbucket.Open(context.Background(), secure); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	secure.CAFile = cfg.CAFile
	s := open(t, secure)
	regtest.Put(t.Context(), t, s, repo, regtest.NewArtifact("application/vnd.example", nil, regtest.Random(1, 20<<20)), "v1")
}

func TestParseLocation(t *testing.T) {
	t.Parallel()
	got, err := regbucket.ParseLocation("s3://functions/a/b/?endpoint=https://minio.example.com:9000&region=eu-central-1&path-style=true&ca=/etc/ca.pem&create=true")
	want := regbucket.Options{Endpoint: "https://minio.example.com:9000", Bucket: "functions", Prefix: "a/b", Region: "eu-central-1", PathStyle: true, CAFile: "/etc/ca.pem", CreateBucket: true}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := regbucket.ParseLocation("s3://functions?credentials=instance"); err != nil || !got.Credentials.Instance || got.Prefix != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	for in, want := range map[string]string{
		"":                                 "not s3://BUCKET",
		"functions":                        "not s3://BUCKET",
		"s3:functions":                     "not s3://BUCKET",
		"https://functions":                "not s3://BUCKET",
		"s3:///x":                          "not s3://BUCKET",
		"s3://key:hush@functions":          "credentials do not belong there",
		"s3://functions?x=1":               "unknown parameter",
		"s3://functions?endpoint=minio":    "is not https://HOST",
		"s3://f?endpoint=https://k:hush@h": "parameter endpoint: credentials do not belong there",
		"s3://functions?create=perhaps":    "parameter create",
		"s3://functions?credentials=x":     "credentials=instance",
		"s3://functions?region=a&region=b": "is there twice",
		"s3://functions?%zz":               "invalid URL escape",
	} {
		if _, err := regbucket.ParseLocation(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		} else if strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: a secret shows in %v", in, err)
		}
	}
}

// What was accepted names a bucket, has an endpoint that can be used, and no
// keys.
func FuzzParseLocation(f *testing.F) {
	for _, s := range []string{"s3://b", "s3://b/p?endpoint=http://h:1&region=r", "s3://b?credentials=instance", "s3://u:p@b", "s3://%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := regbucket.ParseLocation(s)
		if err != nil {
			return
		}
		if o.Bucket == "" || o.Credentials.AccessKey != "" || o.Credentials.SecretKey != "" || strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/") {
			t.Errorf("%q: %+v", s, o)
		}
	})
}
