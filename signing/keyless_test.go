package signing_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
	"github.com/krmcat/krmcat/signing/signtest"
)

const (
	githubIssuer = "https://token.actions.githubusercontent.com"
	releaseFlow  = "https://github.com/krmcat/krmcat/.github/workflows/release.yml@refs/tags/v1.0.0"
)

// tsaOnly is what the authority of signtest can vouch for.
var tsaOnly = signing.Evidence{Timestamps: 1, NoSCT: true}

func newKeyless(t testing.TB, a *signtest.Authority, subject string) *signing.KeylessSigner {
	t.Helper()
	s, err := signing.NewKeylessSigner(a.Services(), signtest.Token(githubIssuer, subject))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKeyless(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	auth, other := signtest.New(t), signtest.New(t)
	srv := regtest.NewServer(t)
	repo := repository(t, srv.Host, "fn/a")
	ref := srv.Host + "/fn/a"
	subject := push(t, repo, "a", "v1")

	services := auth.Services()
	services.Root = auth.Root
	signer, err := signing.NewKeylessSigner(services, signtest.Token(githubIssuer, releaseFlow))
	if err != nil {
		t.Fatal(err)
	}
	opts := signing.SignOptions{Annotations: map[string]string{"a": "b"}, Legacy: true}
	if ok, err := signer.Signed(ctx, repo, ref, subject, opts); ok || err != nil {
		t.Errorf("Signed before signing: got %v, %v", ok, err)
	}
	if _, err := signer.With(opts).Sign(ctx, repo, ref, subject); err != nil {
		t.Fatal(err)
	}
	if ok, err := signer.Signed(ctx, repo, ref, subject, opts); !ok || err != nil {
		t.Errorf("Signed after signing: got %v, %v", ok, err)
	}
	if n := auth.Certificates(); n != 1 {
		t.Errorf("asked for %d certificates, want 1 for all signatures", n)
	}

	policy := func(id signing.Identity, root *signing.TrustedRoot, ev signing.Evidence) signing.Policy {
		return signing.Policy{Identities: []signing.Identity{id}, Root: root, Evidence: ev}
	}
	exact := signing.Identity{Issuer: githubIssuer, Subject: releaseFlow}
	for name, tt := range map[string]struct {
		policy signing.Policy
		ok     bool
	}{
		"exact":               {policy(exact, auth.Root, tsaOnly), true},
		"prefix":              {policy(signing.Identity{Issuer: githubIssuer, SubjectPrefix: "https://github.com/krmcat/"}, auth.Root, tsaOnly), true},
		"regexp":              {policy(signing.Identity{Issuer: githubIssuer, SubjectRegexp: `https://github\.com/krmcat/krmcat/\.github/workflows/release\.yml@refs/tags/v.*`}, auth.Root, tsaOnly), true},
		"prefix of another":   {policy(signing.Identity{Issuer: githubIssuer, SubjectPrefix: "https://github.com/krm/"}, auth.Root, tsaOnly), false},
		"other subject":       {policy(signing.Identity{Issuer: githubIssuer, Subject: releaseFlow + "1"}, auth.Root, tsaOnly), false},
		"other issuer":        {policy(signing.Identity{Issuer: "https://gitlab.com", Subject: releaseFlow}, auth.Root, tsaOnly), false},
		"other root":          {policy(exact, other.Root, tsaOnly), false},
		"no root":             {policy(exact, nil, tsaOnly), false},
		"strict by default":   {policy(exact, auth.Root, signing.Evidence{}), false},
		"log required":        {policy(exact, auth.Root, signing.Evidence{Timestamps: 1, Tlog: 1, NoSCT: true}), false},
		"two timestamps":      {policy(exact, auth.Root, signing.Evidence{Timestamps: 2, NoSCT: true}), false},
		"SCT required":        {policy(exact, auth.Root, signing.Evidence{Timestamps: 1}), false},
		"key instead":         {signing.Policy{Keys: []any{newSigner(t).PublicKey()}}, false},
		"key or the identity": {signing.Policy{Keys: []any{newSigner(t).PublicKey()}, Identities: []signing.Identity{exact}, Root: auth.Root, Evidence: tsaOnly}, true},
	} {
		for _, legacyOnly := range []bool{false, true} {
			v, err := verifyFormat(t, repo, ref, subject, tt.policy, legacyOnly)
			if (err == nil) != tt.ok {
				t.Errorf("%s (older format: %v): got %v, want success %v", name, legacyOnly, err, tt.ok)
			}
			if err != nil && !errors.Is(err, signing.ErrPolicy) {
				t.Errorf("%s (older format: %v): got %v, want ErrPolicy", name, legacyOnly, err)
			}
			if err == nil && (v.Identity.Subject != releaseFlow || v.Identity.Issuer != githubIssuer || v.Key != "" || time.Since(v.Time) > time.Minute) {
				t.Errorf("%s (older format: %v): got identity %s, key %q, time %s", name, legacyOnly, v.Identity, v.Key, v.Time)
			}
		}
	}

	// Files.
	b, err := signer.With(signing.SignOptions{}).SignBlob(ctx, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := signing.VerifyBlob(ctx, []byte("x"), b, policy(exact, auth.Root, tsaOnly)); err != nil {
		t.Errorf("VerifyBlob: %v", err)
	}
	if _, err := signing.VerifyBlob(ctx, []byte("x"), b, policy(exact, other.Root, tsaOnly)); !errors.Is(err, signing.ErrPolicy) {
		t.Errorf("VerifyBlob with another root: got %v, want ErrPolicy", err)
	}
}

func TestKeyWithTimestamp(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	auth := signtest.New(t)
	srv := regtest.NewServer(t)
	repo := repository(t, srv.Host, "fn/a")
	ref := srv.Host + "/fn/a"
	subject := push(t, repo, "a", "v1")
	signer := newSigner(t)
	services := &signing.Services{Timestamps: []string{auth.Timestamp}, Root: auth.Root}
	if _, err := signer.With(signing.SignOptions{Services: services, Legacy: true}).Sign(ctx, repo, ref, subject); err != nil {
		t.Fatal(err)
	}
	policy := signing.Policy{Keys: []any{signer.PublicKey()}, Root: auth.Root, Evidence: signing.Evidence{Timestamps: 1}}
	for _, legacy := range []bool{false, true} {
		v, err := verifyFormat(t, repo, ref, subject, policy, legacy)
		if err != nil {
			t.Fatalf("older format %v: %v", legacy, err)
		}
		if v.Time.IsZero() || v.Key != signer.Fingerprint() {
			t.Errorf("older format %v: got time %v by %s", legacy, v.Time, v.Key)
		}
	}
	bare := push(t, repo, "bare", "v2")
	if _, err := signer.With(signing.SignOptions{Legacy: true}).Sign(ctx, repo, ref, bare); err != nil {
		t.Fatal(err)
	}
	for _, legacy := range []bool{false, true} {
		if _, err := verifyFormat(t, repo, ref, bare, policy, legacy); !errors.Is(err, signing.ErrPolicy) {
			t.Errorf("no timestamp, older format %v: got %v, want ErrPolicy", legacy, err)
		}
	}
}

func TestPolicyMistakes(t *testing.T) {
	t.Parallel()
	auth := signtest.New(t)
	key := newSigner(t).PublicKey()
	id := signing.Identity{Issuer: "https://i", Subject: "s"}
	for name, tt := range map[string]struct {
		policy signing.Policy
		want   string
	}{
		"no issuer":         {signing.Policy{Identities: []signing.Identity{{Subject: "s"}}, Root: auth.Root}, "no issuer"},
		"no subject":        {signing.Policy{Identities: []signing.Identity{{Issuer: "https://i"}}, Root: auth.Root}, "give one of"},
		"two subjects":      {signing.Policy{Identities: []signing.Identity{{Issuer: "https://i", Subject: "s", SubjectPrefix: "s/"}}, Root: auth.Root}, "give one of"},
		"open prefix":       {signing.Policy{Identities: []signing.Identity{{Issuer: "https://i", SubjectPrefix: "https://github.com/krm"}}, Root: auth.Root}, "has to end in / or @"},
		"bad regexp":        {signing.Policy{Identities: []signing.Identity{{Issuer: "https://i", SubjectRegexp: "("}}, Root: auth.Root}, "missing closing )"},
		"no root":           {signing.Policy{Identities: []signing.Identity{id}}, "no trusted root"},
		"evidence, no root": {signing.Policy{Keys: []any{key}, Evidence: signing.Evidence{Tlog: 1}}, "no trusted root"},
		"no key":            {signing.Policy{Keys: []any{"cosign.pub"}}, "keys of type string are not supported"},
		"empty":             {signing.Policy{}, "names no key and no identity"},
	} {
		_, err := signing.VerifyBlob(t.Context(), nil, []byte("{}"), tt.policy)
		if !errors.Is(err, signing.ErrPolicy) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want ErrPolicy with %q", name, err, tt.want)
		}
	}
}

func TestKeylessMistakes(t *testing.T) {
	t.Parallel()
	good := signtest.Token("https://i", "s@example.com")
	expired := strings.Split(good, ".")
	expired[1] = "eyJleHAiOjF9"
	tsa := []string{"http://127.0.0.1:1"}
	for name, tt := range map[string]struct {
		services *signing.Services
		token    string
		want     string
	}{
		"nil":           {nil, good, "needs the URL of a certificate authority"},
		"no fulcio":     {&signing.Services{Timestamps: tsa}, good, "needs the URL of a certificate authority"},
		"no time":       {&signing.Services{Fulcio: "http://f"}, good, "valid for minutes only"},
		"rekor 2 alone": {&signing.Services{Fulcio: "http://f", Logs: []signing.Log{{URL: "http://r", Version: 2}}}, good, "vouches for no time"},
		"rekor 3":       {&signing.Services{Fulcio: "http://f", Logs: []signing.Log{{URL: "http://r", Version: 3}}}, good, "not 1 or 2"},
		"no token":      {&signing.Services{Fulcio: "http://f", Timestamps: tsa}, "", "not a JSON web token"},
		"bad token":     {&signing.Services{Fulcio: "http://f", Timestamps: tsa}, "a.b.c", "cannot be read"},
		"old token":     {&signing.Services{Fulcio: "http://f", Timestamps: tsa}, strings.Join(expired, "."), "expired at 1970"},
	} {
		if _, err := signing.NewKeylessSigner(tt.services, tt.token); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	// A certificate authority that is down.
	s, err := signing.NewKeylessSigner(&signing.Services{Fulcio: "http://127.0.0.1:1", Timestamps: tsa}, good)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.With(signing.SignOptions{}).SignBlob(t.Context(), nil); err == nil {
		t.Error("signed without a certificate authority")
	}
}

func TestAmbientToken(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer runner-secret" || r.URL.Query().Get("audience") != "sigstore" || r.URL.Query().Get("api") != "1" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		w.Write([]byte(`{"value":"github-token"}`))
	}))
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("pod-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		env     map[string]string
		file    string
		want    string
		wantErr string
	}{
		"gitlab":            {map[string]string{"SIGSTORE_ID_TOKEN": " gitlab-token "}, "", "gitlab-token", ""},
		"github":            {map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": srv.URL + "?api=1", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "runner-secret"}, "", "github-token", ""},
		"github, no rights": {map[string]string{"ACTIONS_ID_TOKEN_REQUEST_URL": srv.URL, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "other-secret"}, "", "", "id-token: write"},
		"kubernetes":        {nil, file, "pod-token", ""},
		"nothing":           {nil, file + "x", "", "no identity token"},
	} {
		src := signing.TokenSource{Getenv: func(k string) string { return tt.env[k] }, KubernetesFile: tt.file}
		got, err := src.Ambient(t.Context())
		if got != tt.want || (err == nil) != (tt.wantErr == "") {
			t.Errorf("%s: got %q, %v; want %q, error %q", name, got, err, tt.want, tt.wantErr)
		}
		if err != nil && (!strings.Contains(err.Error(), tt.wantErr) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: got %v, want %q and no secret", name, err, tt.wantErr)
		}
	}
	if _, err := (signing.TokenSource{}).Ambient(t.Context()); !errors.Is(err, signing.ErrNoToken) {
		t.Errorf("zero value: got %v, want ErrNoToken", err)
	}
}
