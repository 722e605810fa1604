package signing_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/krmcat/krmcat/signing"
)

// oidcIssuer is an OpenID Connect issuer whose user always agrees.
type oidcIssuer struct {
	url string
	key *ecdsa.PrivateKey

	// What it does wrong.
	audience   string                      // instead of the client
	nonce      string                      // instead of the one it was given
	signWith   *ecdsa.PrivateKey           // instead of its key
	authURL    string                      // announced instead of its own
	noIDToken  bool                        // only an access token
	accessHash string                      // instead of the right at_hash
	redirect   func(url.Values) url.Values // what it sends the browser back with

	mu     sync.Mutex
	asked  url.Values // of the authorization
	secret string     // the token that it gave
}

const loginCode = "code-that-nobody-sees"

func newOIDCIssuer(t *testing.T) *oidcIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &oidcIssuer{key: key, audience: "client"}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		auth := i.url + "/auth"
		if i.authURL != "" {
			auth = i.authURL
		}
		answer(w, map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys", "authorization_endpoint": auth, "token_endpoint": i.url + "/token", "id_token_signing_alg_values_supported": []string{"ES256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		point, _ := key.PublicKey.Bytes()
		answer(w, map[string]any{"keys": []any{map[string]any{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "x": b64(point[1:33]), "y": b64(point[33:])}}})
	})
	mux.HandleFunc("/auth", i.authorize)
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		problem := i.exchange(r)
		if problem != "" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": problem, "error_description": "secret-details"})
			return
		}
		out := map[string]any{"access_token": "access", "token_type": "Bearer"}
		if !i.noIDToken {
			out["id_token"] = i.token(t)
		}
		answer(w, out)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	i.url = srv.URL
	return i
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// authorize sends the browser back with a code.
func (i *oidcIssuer) authorize(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked = r.URL.Query()
	if i.asked.Get("redirect_uri") == "urn:ietf:wg:oauth:2.0:oob" {
		_, _ = io.WriteString(w, loginCode)
		return
	}
	back := url.Values{"code": {loginCode}, "state": {i.asked.Get("state")}}
	if i.redirect != nil {
		back = i.redirect(back)
	}
	http.Redirect(w, r, i.asked.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// exchange checks what came for a token: the code, for the same client and
// redirect, by whoever knows the verifier behind the challenge.
func (i *oidcIssuer) exchange(r *http.Request) (problem string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	switch {
	case r.PostFormValue("code") != loginCode:
		return "invalid_code"
	case r.PostFormValue("redirect_uri") != i.asked.Get("redirect_uri"):
		return "invalid_redirect"
	case i.asked.Get("code_challenge_method") != "S256" || b64(sum[:]) != i.asked.Get("code_challenge"):
		return "invalid_verifier"
	case len(r.PostFormValue("code_verifier")) < 43:
		return "short_verifier"
	}
	return ""
}

func (i *oidcIssuer) token(t *testing.T) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	claims := map[string]any{"iss": i.url, "sub": "u", "aud": i.audience, "nonce": i.asked.Get("nonce"), "email": "u@example.com", "email_verified": true, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix()}
	if i.nonce != "" {
		claims["nonce"] = i.nonce
	}
	sum := sha256.Sum256([]byte("access"))
	claims["at_hash"] = b64(sum[:16])
	if i.accessHash != "" {
		claims["at_hash"] = i.accessHash
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Error(err)
	}
	text := b64([]byte(`{"alg":"ES256"}`)) + "." + b64(body)
	key := i.key
	if i.signWith != nil {
		key = i.signWith
	}
	hash := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, hash[:])
	if err != nil {
		t.Error(err)
	}
	sig := make([]byte, 64)
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	i.secret = text + "." + b64(sig)
	return i.secret
}

// browse plays a browser: it goes where it is sent.
func browse(ctx context.Context, address string) error {
	status, err := visit(ctx, address)
	if err == nil && status != http.StatusOK {
		return errors.New(http.StatusText(status))
	}
	return err
}

func visit(ctx context.Context, address string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func TestLogin(t *testing.T) {
	t.Parallel()
	i := newOIDCIssuer(t)
	var out strings.Builder
	token, err := (&signing.Login{Issuer: i.url, ClientID: "client", Out: &out, Open: browse}).Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if token != i.secret {
		t.Error("got another token than the issuer gave")
	}
	for key, want := range map[string]string{"client_id": "client", "response_type": "code", "scope": "openid email", "code_challenge_method": "S256"} {
		if got := i.asked.Get(key); got != want {
			t.Errorf("asked for %s=%q, want %q", key, got, want)
		}
	}
	if u, err := url.Parse(i.asked.Get("redirect_uri")); err != nil || u.Hostname() != "localhost" || u.Scheme != "http" {
		t.Errorf("answers go to %s", i.asked.Get("redirect_uri"))
	}
	if len(i.asked.Get("state")) < 20 || len(i.asked.Get("nonce")) < 20 || i.asked.Get("state") == i.asked.Get("nonce") {
		t.Errorf("state %q and nonce %q can be guessed", i.asked.Get("state"), i.asked.Get("nonce"))
	}
	// Nothing secret is shown.
	for _, secret := range []string{token, loginCode} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("printed %q", secret)
		}
	}
	if !strings.Contains(out.String(), i.url+"/auth?") {
		t.Errorf("printed %q, without where to go", out.String())
	}
	// Each login makes up everything anew, and nobody listens when it is over.
	before := i.asked
	if _, err := (&signing.Login{Issuer: i.url, ClientID: "client", Open: browse}).Token(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"state", "nonce", "code_challenge"} {
		if before.Get(key) == i.asked.Get(key) {
			t.Errorf("the same %s twice", key)
		}
	}
	if _, err := visit(t.Context(), i.asked.Get("redirect_uri")); err == nil {
		t.Error("somebody listens after the login")
	}
}

// TestLoginWrongState: what comes without the state is refused, and the login
// goes on.
func TestLoginWrongState(t *testing.T) {
	t.Parallel()
	i := newOIDCIssuer(t)
	login := &signing.Login{Issuer: i.url, ClientID: "client", Open: func(ctx context.Context, address string) error {
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		back := u.Query().Get("redirect_uri")
		for _, q := range []string{"", "?code=evil", "?code=evil&state=", "?code=evil&state=x", "?error=x&state=x", "?code=evil&state=" + url.QueryEscape(u.Query().Get("state")+"x")} {
			if status, err := visit(ctx, back+q); err != nil || status != http.StatusBadRequest {
				t.Errorf("%q: got %d, %v; want 400", q, status, err)
			}
		}
		if status, err := visit(ctx, strings.Replace(back, "/auth/callback", "/", 1)); err != nil || status != http.StatusNotFound {
			t.Errorf("another path: got %d, %v; want 404", status, err)
		}
		return browse(ctx, address)
	}}
	if token, err := login.Token(t.Context()); err != nil || token != i.secret {
		t.Errorf("got %v", err)
	}
	// An issuer that mixes logins up.
	i.redirect = func(v url.Values) url.Values { v.Set("state", "of another"); return v }
	login.Open = func(ctx context.Context, address string) error {
		if status, err := visit(ctx, address); err != nil || status != http.StatusBadRequest {
			t.Errorf("got %d, %v; want 400", status, err)
		}
		return nil
	}
	login.Timeout = 100 * time.Millisecond
	if _, err := login.Token(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody logged in within 100ms") {
		t.Errorf("got %v, want a timeout", err)
	}
}

func TestLoginMistakes(t *testing.T) {
	t.Parallel()
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*oidcIssuer, *signing.Login)
		want   string
	}{
		"nonce":        {func(i *oidcIssuer, _ *signing.Login) { i.nonce = "another" }, "of another login"},
		"audience":     {func(i *oidcIssuer, _ *signing.Login) { i.audience = "someone" }, "audience"},
		"signature":    {func(i *oidcIssuer, _ *signing.Login) { i.signWith = other }, "failed to verify"},
		"access token": {func(i *oidcIssuer, _ *signing.Login) { i.accessHash = "AAAA" }, "access token hash"},
		"no token":     {func(i *oidcIssuer, _ *signing.Login) { i.noIDToken = true }, "no identity token"},
		"refused": {func(i *oidcIssuer, _ *signing.Login) {
			i.redirect = func(v url.Values) url.Values {
				return url.Values{"state": v["state"], "error": {"access_denied"}, "error_description": {"no\nway"}}
			}
		}, `the issuer refused: "access_denied" "no\nway"`},
		"no code": {func(i *oidcIssuer, _ *signing.Login) {
			i.redirect = func(v url.Values) url.Values { v.Del("code"); return v }
		}, "no code"},
		"another code": {func(i *oidcIssuer, _ *signing.Login) {
			i.redirect = func(v url.Values) url.Values { v.Set("code", "stolen"); return v }
		}, `400 Bad Request "invalid_code"`},
		"not a page":   {func(i *oidcIssuer, _ *signing.Login) { i.authURL = "file:///etc/passwd" }, "is not an https URL"},
		"http":         {func(_ *oidcIssuer, l *signing.Login) { l.Issuer = "http://issuer.example.com" }, "is not an https URL"},
		"no issuer":    {func(_ *oidcIssuer, l *signing.Login) { l.Issuer = "" }, "is not an https URL"},
		"nobody there": {func(_ *oidcIssuer, l *signing.Login) { l.Issuer = "http://127.0.0.1:1" }, "refused"},
		"no browser": {func(_ *oidcIssuer, l *signing.Login) {
			l.Open = func(context.Context, string) error { return errors.New("no display") }
		}, "opening a browser: no display"},
		"nothing typed": {func(_ *oidcIssuer, l *signing.Login) {
			l.Open = func(context.Context, string) error { return errors.New("no display") }
			l.In = strings.NewReader("\n")
		}, "no code was typed"},
		"keyboard gone": {func(_ *oidcIssuer, l *signing.Login) {
			l.Open = func(context.Context, string) error { return errors.New("no display") }
			l.In = iotest.ErrReader(errors.New("keyboard gone"))
		}, "keyboard gone"},
		"nobody types": {func(_ *oidcIssuer, l *signing.Login) {
			l.Open = func(context.Context, string) error { return errors.New("no display") }
			l.In, _ = io.Pipe()
			l.Timeout = 100 * time.Millisecond
		}, "nobody logged in"},
		"nobody comes": {func(_ *oidcIssuer, l *signing.Login) {
			l.Open = func(context.Context, string) error { return nil }
			l.Timeout = 100 * time.Millisecond
		}, "nobody logged in"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newOIDCIssuer(t)
			var out strings.Builder
			login := &signing.Login{Issuer: i.url, ClientID: "client", Out: &out, Open: browse}
			tt.change(i, login)
			_, err := login.Token(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			for _, secret := range []string{i.secret, loginCode, "secret-details"} {
				if secret != "" && (strings.Contains(out.String(), secret) || err != nil && strings.Contains(err.Error(), secret)) {
					t.Errorf("printed %q", secret)
				}
			}
		})
	}
	// The caller gives up.
	i := newOIDCIssuer(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = (&signing.Login{Issuer: i.url, ClientID: "client", Open: func(context.Context, string) error { cancel(); return nil }}).Token(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// TestLoginByHand: without a browser the user types the code, which is of use
// only to whoever asked for it.
func TestLoginByHand(t *testing.T) {
	t.Parallel()
	i := newOIDCIssuer(t)
	in, typed := io.Pipe()
	var out lockedBuilder
	login := &signing.Login{Issuer: i.url, ClientID: "client", In: in, Out: &out, Open: func(context.Context, string) error { return errors.New("no display") }}
	go func() {
		// The user reads the second address, and goes there elsewhere.
		for {
			if lines := strings.Split(out.String(), "\n"); len(lines) > 4 {
				if err := browse(t.Context(), lines[3]); err != nil {
					t.Errorf("%s: %v", lines[3], err)
				}
				_, _ = io.WriteString(typed, loginCode+"\n")
				return
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	token, err := login.Token(t.Context())
	if err != nil || token != i.secret {
		t.Errorf("got %v\n%s", err, out.String())
	}
	if strings.Contains(out.String(), token) {
		t.Error("the token was printed")
	}
}

// lockedBuilder is a strings.Builder for two goroutines.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
