package signing

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	loginTimeout = 5 * time.Minute
	// loginByHand asks an issuer to show the code to the user.
	loginByHand = "urn:ietf:wg:oauth:2.0:oob"
	maxCode     = 4 << 10
)

// Login gets an identity token from an OpenID Connect issuer through a browser:
// the authorization code flow with PKCE, whose answer comes to a port of the
// loopback interface (RFC 8252, RFC 7636). What comes without the state of this
// login is refused and waited on; a token with another nonce is an error.
type Login struct {
	Issuer   string // URL; https unless it is on this machine
	ClientID string
	// Out gets where to go and what to do, never a token or a code.
	Out io.Writer
	// In is where the user types the code if no browser can be opened. Nil
	// makes that an error.
	In io.Reader
	// Open opens a URL in a browser. Nil means the system's.
	Open func(ctx context.Context, url string) error
	// Timeout is for the whole login; zero means five minutes.
	Timeout time.Duration
	// HTTPClient asks the issuer. Nil is http.DefaultClient.
	HTTPClient *http.Client
}

// Token returns when the user has logged in, or with the error of ctx.
func (l *Login) Token(ctx context.Context) (string, error) {
	timeout := l.Timeout
	if timeout == 0 {
		timeout = loginTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("nobody logged in within %s", timeout))
	defer cancel()
	token, err := l.token(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", fmt.Errorf("logging in at %s: %w", l.Issuer, err)
	}
	return token, nil
}

func (l *Login) token(ctx context.Context) (string, error) {
	if err := secureURL(l.Issuer); err != nil {
		return "", err
	}
	if l.HTTPClient != nil {
		ctx = oidc.ClientContext(ctx, l.HTTPClient)
	}
	provider, err := oidc.NewProvider(ctx, l.Issuer)
	if err != nil {
		return "", err
	}
	// It is opened by a program that takes more than web pages.
	if err := secureURL(provider.Endpoint().AuthURL); err != nil {
		return "", fmt.Errorf("the issuer's authorization endpoint: %w", err)
	}
	a := &attempt{
		config:   oauth2.Config{ClientID: l.ClientID, Endpoint: provider.Endpoint(), Scopes: []string{oidc.ScopeOpenID, "email"}},
		state:    rand.Text(),
		nonce:    rand.Text(),
		verifier: oauth2.GenerateVerifier(),
	}
	code, err := l.code(ctx, a)
	if err != nil {
		return "", err
	}
	return a.exchange(ctx, provider, code)
}

// attempt is what one login made up, and nobody else knows.
type attempt struct {
	config                 oauth2.Config
	state, nonce, verifier string
}

// url is where the user logs in.
func (a *attempt) url() string {
	return a.config.AuthCodeURL(a.state, oauth2.S256ChallengeOption(a.verifier), oidc.Nonce(a.nonce))
}

// code sends the user to the issuer and waits for the code.
func (l *Login) code(ctx context.Context, a *attempt) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("waiting for the browser: %w", err)
	}
	answers := make(chan answer, 1)
	srv := &http.Server{Handler: a.callback(answers), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() { _ = srv.Serve(listener) }() // until it is shut down
	defer func() {
		// The page that says so has to reach the browser.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close()
		}
	}()
	// Issuers know this name for public clients, and not the address.
	a.config.RedirectURL = fmt.Sprintf("http://localhost:%d/auth/callback", listener.Addr().(*net.TCPAddr).Port)
	open := l.Open
	if open == nil {
		open = openBrowser
	}
	fmt.Fprintf(l.out(), "Log in with your browser, which is opened at\n%s\n", a.url())
	opened := make(chan error, 1)
	go func() { opened <- open(ctx, a.url()) }()
	for {
		select {
		case got := <-answers:
			return got.code, got.err
		case err := <-opened:
			if err != nil {
				return l.codeByHand(ctx, a, err)
			}
			opened = nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (l *Login) out() io.Writer {
	if l.Out == nil {
		return io.Discard
	}
	return l.Out
}

// answer is what a browser brought.
type answer struct {
	code string
	err  error
}

// callback takes the answer of the issuer, once.
func (a *attempt) callback(answers chan<- answer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /auth/callback", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		q := r.URL.Query()
		// Any page can send a browser here; only the issuer was told the state.
		if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(a.state)) != 1 {
			http.Error(w, "This is not the login that krmcat waits for.", http.StatusBadRequest)
			return
		}
		got := answer{code: q.Get("code")}
		if problem := q.Get("error"); problem != "" {
			got = answer{err: fmt.Errorf("the issuer refused: %q %q", problem, q.Get("error_description"))}
		} else if got.code == "" {
			got = answer{err: errors.New("the issuer sent no code")}
		}
		select {
		case answers <- got:
			fmt.Fprintln(w, "krmcat has the answer. You can close this window.")
		default:
			http.Error(w, "This login is over.", http.StatusConflict)
		}
	})
	return mux
}

// codeByHand lets the user log in on another machine and type the code.
func (l *Login) codeByHand(ctx context.Context, a *attempt, why error) (string, error) {
	if l.In == nil {
		return "", fmt.Errorf("opening a browser: %w", why)
	}
	a.config.RedirectURL = loginByHand
	fmt.Fprintf(l.out(), "No browser can be opened (%v). Go to\n%s\nand type the code that is shown: ", why, a.url())
	answers := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(l.In, maxCode)).ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			err = nil
		} else if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("no code was typed")
		}
		answers <- answer{line, err}
	}()
	select {
	case got := <-answers:
		return got.code, got.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// exchange gets the token for a code and checks that it is of this login.
func (a *attempt) exchange(ctx context.Context, provider *oidc.Provider, code string) (string, error) {
	answer, err := a.config.Exchange(ctx, code, oauth2.VerifierOption(a.verifier))
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		// Its text holds the whole answer.
		return "", fmt.Errorf("the issuer gave no token: %s %q", e.Response.Status, e.ErrorCode)
	}
	if err != nil {
		return "", err
	}
	raw, ok := answer.Extra("id_token").(string)
	if !ok {
		return "", errors.New("the issuer gave no identity token")
	}
	token, err := provider.VerifierContext(ctx, &oidc.Config{ClientID: a.config.ClientID}).Verify(ctx, raw)
	if err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare([]byte(token.Nonce), []byte(a.nonce)) != 1 {
		return "", errors.New("the identity token is of another login")
	}
	if token.AccessTokenHash != "" {
		if err := token.VerifyAccessToken(answer.AccessToken); err != nil {
			return "", err
		}
	}
	return raw, nil
}

// secureURL wants https, or http on this machine.
func secureURL(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && local) {
		return fmt.Errorf("%q is not an https URL", address)
	}
	return nil
}

// openBrowser opens a URL with what the system has for that.
func openBrowser(ctx context.Context, address string) error {
	var cmd *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		cmd = exec.CommandContext(ctx, "open", address)
	case "windows":
		cmd = exec.CommandContext(ctx, "rundll32", "url.dll,FileProtocolHandler", address)
	default:
		cmd = exec.CommandContext(ctx, "xdg-open", address)
	}
	return cmd.Run()
}
