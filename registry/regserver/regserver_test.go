package regserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/registry"
	"github.com/krmcat/krmcat/registry/regmem"
	"github.com/krmcat/krmcat/registry/regserver"
	"github.com/krmcat/krmcat/registry/regtest"
)

func TestReleaseTag(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]bool{
		"v1.2.3": true, "1.2.3": true, "v0.0.0": true, "v1.2.3-rc.1": true, "1.2.3-alpha": true,
		"v1": false, "v1.2": false, "latest": false, "v1.2.3.4": false, "vv1.2.3": false, "v01.2.3": false, "v1.2.3_v1_exec": false, "test0": false, "": false,
		"sha256-" + strings.Repeat("a", 64): false,
	} {
		if got := regserver.ReleaseTag("repository", tag); got != want {
			t.Errorf("ReleaseTag(%q): got %t, want %t", tag, got, want)
		}
	}
}

// A release never changes: the same bytes again are success, others are
// refused with the digest that is there, and it cannot be deleted.
func TestImmutableReleases(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), nil)
	one := regtest.NewArtifact("application/vnd.example", nil, []byte("one"))
	two := regtest.NewArtifact("application/vnd.example", nil, []byte("two"))
	c.push(repo, one, "v1.0.0", "latest")
	c.push(repo, two, "latest")
	c.pushManifest(repo, "v1.0.0", one).want(http.StatusCreated)
	a := c.pushManifest(repo, "v1.0.0", two).want(http.StatusForbidden).wantCode("DENIED")
	if m := a.errors()[0].Message; !strings.Contains(m, string(one.Descriptor.Digest)) || !strings.Contains(m, "v1.0.0") {
		t.Errorf("the refusal does not say what is there: %s", m)
	}
	c.pushManifest(repo, string(two.Descriptor.Digest)+"?tag=v1.0.0&tag=other", two).want(http.StatusForbidden)
	c.get("/v2/" + repo + "/manifests/other").want(http.StatusNotFound)
	for _, ref := range []string{"v1.0.0", string(one.Descriptor.Digest)} {
		c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+ref, nil).want(http.StatusMethodNotAllowed).wantCode("UNSUPPORTED")
	}
	c.get("/v2/"+repo+"/manifests/v1.0.0").want(http.StatusOK).wantHeader("Docker-Content-Digest", string(one.Descriptor.Digest))
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(two.Descriptor.Digest), nil).want(http.StatusAccepted)
}

func TestDeletionPolicy(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{
		ImmutableTags: func(string, string) bool { return false },
		Deletable:     func(_, reference string) bool { return strings.HasPrefix(reference, "tmp-") },
	})
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "v1.0.0", "tmp-1")
	c.push(repo, regtest.NewArtifact("application/vnd.example", nil, []byte("moved")), "v1.0.0")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/tmp-1", nil).want(http.StatusAccepted)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/v1.0.0", nil).want(http.StatusMethodNotAllowed).wantCode("UNSUPPORTED")
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(art.Descriptor.Digest), nil).want(http.StatusMethodNotAllowed)
	c.do(http.MethodDelete, "/v2/"+repo+"/blobs/"+string(digest.FromString("{}")), nil).want(http.StatusMethodNotAllowed)
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	store := regmem.New()
	art := regtest.NewArtifact("application/vnd.example", nil)
	regtest.Put(t.Context(), t, store, repo, art, "v1")
	c := newClient(t, store, &regserver.Options{ReadOnly: true})
	c.get("/v2/" + repo + "/manifests/v1").want(http.StatusOK)
	c.get("/v2/" + repo + "/tags/list").want(http.StatusOK)
	c.pushManifest(repo, "v2", art).want(http.StatusMethodNotAllowed).wantCode("UNSUPPORTED")
	c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/", nil).want(http.StatusMethodNotAllowed)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/v1", nil).want(http.StatusMethodNotAllowed)
}

func TestNoReferrers(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{NoReferrers: true})
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.push(repo, art, "v1")
	sig := regtest.NewArtifact("application/vnd.example.signature", &art.Descriptor)
	c.pushManifest(repo, "sig", sig).want(http.StatusCreated).wantHeader("OCI-Subject", "")
	c.get("/v2/" + repo + "/referrers/" + string(art.Descriptor.Digest)).want(http.StatusNotFound)
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	store := regmem.New()
	secret := regtest.PutBlob(t.Context(), t, store, "secret/repository", []byte("secret"))
	regtest.PutBlob(t.Context(), t, store, "shared/repository", []byte("shared"))
	c := newClient(t, store, &regserver.Options{Authorize: func(r *http.Request, a regserver.Access) error {
		user, _, ok := r.BasicAuth()
		switch {
		case !ok:
			return &regserver.UnauthorizedError{Challenge: `Basic realm="krmcat"`, Message: "log in first"}
		case user == "broken":
			return errors.New("the user database is down")
		case a.Action == regserver.ActionPing || user == "admin":
			return nil
		case a.Action == regserver.ActionPull && a.Repository == "shared/repository":
			return nil
		case strings.HasPrefix(a.Repository, user+"/") && a.Action != regserver.ActionDelete:
			return nil
		}
		return &registry.RefusedError{Message: user + " may not " + string(a.Action) + " " + a.Repository}
	}})
	basic := func(user string) []string {
		r, _ := http.NewRequest(http.MethodGet, "/", nil)
		r.SetBasicAuth(user, "x")
		return []string{"Authorization", r.Header.Get("Authorization")}
	}
	for _, path := range []string{"/v2/", "/v2/_catalog", "/v2/a/b/tags/list", "/v2/a/b/manifests/v1"} {
		c.get(path).want(http.StatusUnauthorized).wantCode("UNAUTHORIZED").wantHeader("Www-Authenticate", `Basic realm="krmcat"`)
	}
	c.get("/v2/", basic("alice")...).want(http.StatusOK)
	c.get("/v2/_catalog", basic("alice")...).want(http.StatusForbidden).wantCode("DENIED")
	c.get("/v2/_catalog", basic("admin")...).want(http.StatusOK)
	c.get("/v2/", basic("broken")...).want(http.StatusServiceUnavailable)
	c.do(http.MethodPost, "/v2/alice/x/blobs/uploads/", nil, basic("alice")...).want(http.StatusAccepted)
	c.do(http.MethodPost, "/v2/bob/x/blobs/uploads/", nil, basic("alice")...).want(http.StatusForbidden)
	c.do(http.MethodDelete, "/v2/alice/x/manifests/v1", nil, basic("alice")...).want(http.StatusForbidden)
	// A mount needs the right to read where the blob comes from; knowing its
	// digest is not enough.
	mount := func(q string, status int) {
		t.Helper()
		c.do(http.MethodPost, "/v2/alice/x/blobs/uploads/?"+q, nil, basic("alice")...).want(status)
	}
	mount("mount="+string(secret)+"&from=secret/repository", http.StatusAccepted)
	mount("mount="+string(secret), http.StatusAccepted)
	mount("mount="+string(digest.FromString("shared"))+"&from=shared/repository", http.StatusCreated)
	if _, err := store.StatBlob(t.Context(), "alice/x", secret); err == nil {
		t.Error("alice mounted a secret")
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{Limits: regserver.Limits{RepositoryBytes: 2000}})
	c.pushBlob(repo, regtest.Random(1, 1500))
	b := regtest.Random(2, 600)
	path := "/v2/" + repo + "/blobs/uploads/?digest=" + string(digest.FromBytes(b))
	c.do(http.MethodPost, path, bytes.NewReader(b)).want(http.StatusForbidden).wantCode("DENIED")
	c.pushBlob("other/repository", b)
	c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/?from=other/repository&mount="+string(digest.FromBytes(b)), nil).want(http.StatusAccepted)
	c.pushBlob(repo, regtest.Random(3, 500))
	c.do(http.MethodPost, "/v2/"+repo+"/blobs/uploads/", nil).want(http.StatusForbidden)
}

// Where everybody may read everything, a blob is mounted from wherever it is.
func TestMountFromAnywhere(t *testing.T) {
	t.Parallel()
	store := regmem.New()
	d := regtest.PutBlob(t.Context(), t, store, "some/where", []byte("content"))
	for name, test := range map[string]struct {
		opts   regserver.Options
		status int
	}{
		"no rules":            {regserver.Options{}, http.StatusCreated},
		"everybody may read":  {regserver.Options{Authorize: readable(func(string) bool { return true })}, http.StatusCreated},
		"not everything":      {regserver.Options{Authorize: readable(func(repository string) bool { return repository != "" })}, http.StatusAccepted},
		"of a size not known": {regserver.Options{Limits: regserver.Limits{RepositoryBytes: 1000}}, http.StatusAccepted},
		"the rules are broken": {regserver.Options{Authorize: func(_ *http.Request, a regserver.Access) error {
			if a.Repository == "" {
				return errors.New("no database")
			}
			return nil
		}}, http.StatusAccepted},
	} {
		c := newClient(t, store, &test.opts)
		a := c.do(http.MethodPost, "/v2/to/"+strconv.Itoa(len(name))+"/blobs/uploads/?mount="+string(d), nil)
		if a.StatusCode != test.status {
			t.Errorf("%s: got %s %s, want %d", name, a.Status, a.body, test.status)
		}
	}
}

// readable lets everybody do everything but pull.
func readable(may func(repository string) bool) func(*http.Request, regserver.Access) error {
	return func(_ *http.Request, a regserver.Access) error {
		if a.Action == regserver.ActionPull && !may(a.Repository) {
			return &registry.RefusedError{Message: "not yours"}
		}
		return nil
	}
}

// admitter refuses what it is told to.
type admitter func(context.Context, registry.Store, registry.Change) error

func (f admitter) Admit(ctx context.Context, s registry.Store, c registry.Change) error {
	return f(ctx, s, c)
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	c := newClient(t, regmem.New(), &regserver.Options{Admission: admitter(func(ctx context.Context, s registry.Store, c registry.Change) error {
		if _, err := s.Resolve(ctx, c.Repository, string(c.Descriptor.Digest)); err == nil && c.Tag == "first" {
			t.Error("admission was asked after the manifest was stored")
		}
		// The blobs are there to be looked at.
		if rc, err := s.FetchBlob(ctx, c.Repository, digest.FromString("{}")); err != nil {
			t.Errorf("FetchBlob: %v", err)
		} else {
			_ = rc.Close()
		}
		switch c.Tag {
		case "denied":
			return &registry.RefusedError{Code: "DENIED", Message: "not here", Detail: map[string]any{"line": 14}}
		case "invalid":
			return fmt.Errorf("wrapped: %w", &registry.RefusedError{Code: "MANIFEST_INVALID", Message: "not so"})
		case "bad-detail":
			return &registry.RefusedError{Code: "DENIED", Message: "x", Detail: func() {}}
		case "broken":
			return errors.New("secret internals")
		}
		return nil
	})})
	art := regtest.NewArtifact("application/vnd.example", nil)
	c.pushBlob(repo, []byte("{}"))
	c.pushManifest(repo, "first", art).want(http.StatusCreated)
	a := c.pushManifest(repo, "denied", art).want(http.StatusForbidden).wantCode("DENIED")
	if e := a.errors()[0]; string(e.Detail) != `{"line":14}` || e.Message != "not here" {
		t.Errorf("got %s", a.body)
	}
	c.pushManifest(repo, "invalid", art).want(http.StatusBadRequest).wantCode("MANIFEST_INVALID")
	c.pushManifest(repo, "bad-detail", art).want(http.StatusForbidden).wantCode("DENIED")
	if a := c.pushManifest(repo, "broken", art).want(http.StatusServiceUnavailable); bytes.Contains(a.body, []byte("secret")) {
		t.Errorf("the client is told the cause: %s", a.body)
	}
	for _, tag := range []string{"denied", "invalid", "broken", "bad-detail"} {
		c.get("/v2/" + repo + "/manifests/" + tag).want(http.StatusNotFound)
	}
}

// observer writes down what it sees.
type observer struct {
	log   []string
	begin func(registry.Change) error
	done  error
}

func (o *observer) Begin(ctx context.Context, s registry.Store, c registry.Change) (func(context.Context, error) error, error) {
	what := fmt.Sprintf("%s@%s", c.Tag, c.Descriptor.Digest.Encoded()[:8])
	if c.Delete {
		what = "delete " + what
	} else if digest.FromBytes(c.Manifest) != c.Descriptor.Digest {
		what += " with another manifest"
	}
	if o.begin != nil {
		if err := o.begin(c); err != nil {
			return nil, err
		}
	}
	there := func() bool {
		_, err := s.Resolve(ctx, c.Repository, string(c.Descriptor.Digest))
		return err == nil
	}
	o.log = append(o.log, fmt.Sprintf("begin %s %t", what, there()))
	return func(_ context.Context, stored error) error {
		o.log = append(o.log, fmt.Sprintf("done %s %t %t", what, there(), stored == nil))
		return o.done
	}, nil
}

func TestObserver(t *testing.T) {
	t.Parallel()
	o := &observer{done: errors.New("index is full")} // which is logged, and changes nothing
	c := newClient(t, regmem.New(), &regserver.Options{Observer: o, ImmutableTags: func(_, tag string) bool { return tag == "release" }})
	art := regtest.NewArtifact("application/vnd.example", nil)
	other := regtest.NewArtifact("application/vnd.example", nil, []byte("other"))
	c.pushBlob(repo, []byte("{}"))
	c.pushBlob(repo, []byte("other"))
	d := art.Descriptor.Digest.Encoded()[:8]
	want := func(log ...string) {
		t.Helper()
		if !slices.Equal(o.log, log) {
			t.Errorf("got  %q\nwant %q", o.log, log)
		}
		o.log = nil
	}
	c.pushManifest(repo, "release", art).want(http.StatusCreated)
	want("begin release@"+d+" false", "done release@"+d+" true true")
	c.pushManifest(repo, string(art.Descriptor.Digest), art).want(http.StatusCreated)
	want("begin @"+d+" true", "done @"+d+" true true")
	c.pushManifest(repo, string(art.Descriptor.Digest)+"?tag=a&tag=b", art).want(http.StatusCreated)
	want("begin a@"+d+" true", "begin b@"+d+" true", "done a@"+d+" true true", "done b@"+d+" true true")
	// What is refused is not announced.
	c.pushManifest(repo, "release", other).want(http.StatusForbidden)
	c.do(http.MethodPut, "/v2/"+repo+"/manifests/a", strings.NewReader("{}")).want(http.StatusBadRequest)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/none", nil).want(http.StatusNotFound)
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/release", nil).want(http.StatusMethodNotAllowed)
	want()
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/a", nil).want(http.StatusAccepted)
	want("begin delete a@"+d+" true", "done delete a@"+d+" true true")
	c.pushManifest(repo, "gone", other).want(http.StatusCreated)
	o.log = nil
	d = other.Descriptor.Digest.Encoded()[:8]
	c.do(http.MethodDelete, "/v2/"+repo+"/manifests/"+string(other.Descriptor.Digest), nil).want(http.StatusAccepted)
	want("begin delete @"+d+" true", "done delete @"+d+" false true")

	// An observer that cannot take note: nothing is stored, and those that
	// have begun are told.
	o.begin = func(c registry.Change) error {
		if c.Tag == "x" {
			return errors.New("database is down")
		}
		return nil
	}
	c.pushManifest(repo, string(other.Descriptor.Digest)+"?tag=w&tag=x", other).want(http.StatusServiceUnavailable).wantHeader("Retry-After", "5")
	want("begin w@"+d+" false", "done w@"+d+" false false")
	c.get("/v2/" + repo + "/manifests/w").want(http.StatusNotFound)
	c.get("/v2/" + repo + "/manifests/" + string(other.Descriptor.Digest)).want(http.StatusNotFound)
}
