package e2e

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
	ctx509 "github.com/google/certificate-transparency-go/x509"
)

// stack is a running Fulcio, timestamp authority, Rekor v1 and v2, certificate
// log and two issuers of identity tokens.
type stack struct {
	t   *testing.T
	dir string

	mail, github *issuer
	fulcio       string
	timestamp    string
	rekor1       string
	rekor2       string
}

// The ports are fixed: the tests have a network of their own.
const (
	fulcioAddr    = "127.0.0.1:5555"
	timestampAddr = "127.0.0.1:3004"
	rekor1Addr    = "127.0.0.1:3010"
	rekor2Addr    = "127.0.0.1:3003"
	trillianAddr  = "127.0.0.1:8090"
)

func startStack(t *testing.T) *stack {
	t.Helper()
	tools := os.Getenv(envServices)
	s := &stack{t: t, dir: t.TempDir(), fulcio: "http://" + fulcioAddr, timestamp: "http://" + timestampAddr + "/api/v1/timestamp",
		rekor1: "http://" + rekor1Addr, rekor2: "http://" + rekor2Addr}
	s.mail, s.github = newIssuer(t), newIssuer(t)
	ctLog := newCTLog(t, s.path("ct.pub"))
	s.authority()
	s.rekorKey()
	s.write("fulcio.yaml", fulcioConfig(s.mail.url, s.github.url))

	s.start(filepath.Join(tools, "fulcio"), "serve", "--host=127.0.0.1", "--port=5555", "--grpc-host=127.0.0.1", "--grpc-port=5554",
		"--metrics-port=2113", "--legacy-unix-domain-socket="+s.path("f.sock"), "--ca=fileca", "--fileca-cert=ca.pem", "--fileca-key=ca.key",
		"--fileca-key-passwd=fulcio", "--fileca-watch=false", "--ct-log-url="+ctLog, "--config-path=fulcio.yaml")
	s.start(filepath.Join(tools, "timestamp-server"), "serve", "--host=127.0.0.1", "--port=3004", "--timestamp-signer=memory", "--disable-ntp-monitoring")
	s.start(filepath.Join(tools, "posix"), "serve", "--http-address=127.0.0.1", "--http-port=3003", "--grpc-address=127.0.0.1", "--grpc-port=3001",
		"--http-metrics-port=2114", "--hostname=127.0.0.1", "--storage-dir="+s.path("rekor"), "--signer-filepath=rekor.key",
		"--checkpoint-interval=1s", "--batch-max-age=100ms", "--persistent-antispam")
	s.wait("http://" + fulcioAddr + "/healthz")
	s.startRekor1(tools)
	s.wait(s.rekor2 + "/healthz")
	s.write("tsa.pem", s.wait("http://"+timestampAddr+"/api/v1/timestamp/certchain"))

	since := "start-time=2026-01-01T00:00:00Z"
	s.cosign("cosign3", true, "trusted-root", "create",
		"--fulcio=url="+s.fulcio+",certificate-chain=ca.pem", "--ctfe=url="+ctLog+",public-key=ct.pub,"+since,
		"--tsa=url=http://"+timestampAddr+",certificate-chain=tsa.pem", "--rekor=url="+s.rekor2+",public-key=rekor.pub,"+since+",origin=127.0.0.1",
		"--rekor=url="+s.rekor1+",public-key=rekor1.pub,"+since,
		"--out", "trusted_root.json")
	s.signingConfig("signing_config.json", "--rekor=url="+s.rekor2+",api-version=2,"+since+",operator=t", "--rekor-config=ANY")
	s.signingConfig("rekor1.json", "--rekor=url="+s.rekor1+",api-version=1,"+since+",operator=t", "--rekor-config=ANY")
	s.signingConfig("no_log.json")
	return s
}

func (s *stack) signingConfig(out string, more ...string) {
	s.t.Helper()
	since := "start-time=2026-01-01T00:00:00Z"
	s.cosign("cosign3", true, append([]string{"signing-config", "create",
		"--fulcio=url=" + s.fulcio + ",api-version=1," + since + ",operator=t",
		"--tsa=url=" + s.timestamp + ",api-version=1," + since + ",operator=t", "--tsa-config=ANY", "--out", out}, more...)...)
}

// startRekor1 starts the first version of Rekor: a PostgreSQL, Trillian with
// its two halves, a tree in it, and the server in front.
func (s *stack) startRekor1(tools string) {
	s.t.Helper()
	db := s.startPostgres()
	s.psql(db, "CREATE DATABASE trillian")
	schema, err := os.ReadFile(filepath.Join(tools, "trillian.sql"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.psqlIn(db, "trillian", string(schema))
	storage := []string{"--storage_system=postgresql", "--quota_system=noop", "--postgresql_uri=postgresql:///trillian?host=" + db + "&user=krmcat"}
	s.start(filepath.Join(tools, "trillian_log_server"), append(storage, "--rpc_endpoint="+trillianAddr, "--http_endpoint=127.0.0.1:8091")...)
	s.start(filepath.Join(tools, "trillian_log_signer"), append(storage, "--rpc_endpoint=127.0.0.1:8092", "--http_endpoint=127.0.0.1:8093", "--force_master", "--sequencer_interval=100ms")...)
	s.wait("http://127.0.0.1:8091/healthz")
	out, err := exec.Command(filepath.Join(tools, "createtree"), "--admin_server="+trillianAddr).Output()
	if err != nil {
		s.t.Fatalf("createtree: %v", err)
	}
	s.start(filepath.Join(tools, "rekor-server"), "serve", "--host=127.0.0.1", "--port=3010", "--rekor_server.hostname=rekor1.test", "--rekor_server.signer=memory",
		"--trillian_log_server.tlog_id="+strings.TrimSpace(string(out)), "--enable_retrieve_api=false",
		"--enabled_api_endpoints=createLogEntry,getLogEntryByIndex,getLogEntryByUUID,getLogInfo,getLogProof,getPublicKey")
	s.write("rekor1.pub", s.wait(s.rekor1+"/api/v1/log/publicKey"))
}

// startPostgres starts a PostgreSQL on a socket in the folder that it returns.
func (s *stack) startPostgres() string {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "krmcat-e2e") // a short name: sockets cannot have long ones
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		// PostgreSQL refuses to run as root.
		u, err := user.Lookup("nobody")
		if err != nil {
			s.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			s.t.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	init := exec.Command(postgresProgram("initdb"), "-D", data, "-A", "trust", "-U", "krmcat", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	init.Dir, init.SysProcAttr = dir, attr
	if out, err := init.CombinedOutput(); err != nil {
		s.t.Fatalf("initdb: %v\n%s", err, out)
	}
	cmd := exec.Command(postgresProgram("postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	cmd.Dir, cmd.SysProcAttr = dir, attr
	s.run(cmd)
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := exec.Command(postgresProgram("psql"), "-h", dir, "-U", "krmcat", "-d", "postgres", "-c", "SELECT 1").CombinedOutput()
		if err == nil {
			return dir
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("PostgreSQL does not answer: %v\n%s", err, out)
		}
	}
}

// postgresProgram finds a program of PostgreSQL, where Debian has it too.
func postgresProgram(name string) string {
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

func (s *stack) psql(db, statement string) {
	s.t.Helper()
	s.psqlIn(db, "postgres", statement)
}

func (s *stack) psqlIn(db, name, statements string) {
	s.t.Helper()
	cmd := exec.Command(postgresProgram("psql"), "-h", db, "-U", "krmcat", "-d", name, "-q", "-v", "ON_ERROR_STOP=1")
	cmd.Stdin = strings.NewReader(statements)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("psql: %v\n%s", err, out)
	}
}

func (s *stack) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stack) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stack) read(name string) []byte {
	s.t.Helper()
	data, err := os.ReadFile(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return data
}

// start runs a service until the test ends.
func (s *stack) start(bin string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"HOME=" + s.dir, "PATH=" + os.Getenv("PATH")}
	s.run(cmd)
}

// run runs a command until the test ends, and shows its log if the test
// failed.
func (s *stack) run(cmd *exec.Cmd) {
	s.t.Helper()
	t := s.t
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			text := log.String()
			t.Logf("%s:\n%s", filepath.Base(cmd.Path), text[max(0, len(text)-2000):])
		}
	})
}

// wait polls a service until it answers.
func (s *stack) wait(url string) string {
	s.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		resp, err := http.Get(url)
		if err == nil {
			data, rerr := io.ReadAll(resp.Body)
			resp.Body.Close()
			if rerr == nil && resp.StatusCode == http.StatusOK {
				return string(data)
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s does not answer: %v", url, err)
		}
	}
}

// cosign runs the real command and wants it to succeed or to fail; it returns
// the last line of its output.
func (s *stack) cosign(bin string, ok bool, args ...string) string {
	s.t.Helper()
	out, err := s.command(os.Getenv("KRMCAT_"+strings.ToUpper(bin)), nil, args...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	if (err == nil) != ok {
		s.t.Errorf("%s %s: success %v, want %v: %s", bin, strings.Join(args, " "), err == nil, ok, last)
	}
	return last
}

// krmcat runs the command and wants it to succeed or to fail; it returns its
// output.
func (s *stack) krmcat(ok bool, env []string, args ...string) string {
	s.t.Helper()
	out, err := s.command(os.Getenv(envCommand), env, args...)
	if (err == nil) != ok {
		s.t.Errorf("krmcat %s: success %v, want %v: %s", strings.Join(args, " "), err == nil, ok, out)
	}
	return out
}

// command runs a command in the folder of the stack, with no settings of the
// user's.
func (s *stack) command(bin string, env []string, args ...string) (string, error) {
	cmd := exec.Command(bin, args...)
	cmd.Dir = s.dir
	cmd.Env = append([]string{"HOME=" + s.dir, "PATH=" + os.Getenv("PATH"), "COSIGN_PASSWORD=secret",
		// What cosign 2 asks when it signs in the older format.
		"SIGSTORE_REKOR_PUBLIC_KEY=rekor1.pub", "SIGSTORE_CT_LOG_PUBLIC_KEY_FILE=ct.pub", "SIGSTORE_ROOT_FILE=ca.pem"}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// authority makes the root certificate of Fulcio, with its key encrypted as
// Fulcio wants it.
func (s *stack) authority() {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "krmcat test root", Organization: []string{"krmcat test"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	plain, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	block, err := x509.EncryptPEMBlock(rand.Reader, "EC PRIVATE KEY", plain, []byte("fulcio"), x509.PEMCipherAES256) //nolint:staticcheck // the form that Fulcio reads
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("ca.pem", pemText("CERTIFICATE", der))
	s.write("ca.key", string(pem.EncodeToMemory(block)))
}

func (s *stack) rekorKey() {
	s.t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("rekor.key", pemText("PRIVATE KEY", der))
	s.write("rekor.pub", publicPEM(s.t, pub))
}

func pemText(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func publicPEM(t *testing.T, key crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pemText("PUBLIC KEY", der)
}

func fulcioConfig(mail, github string) string {
	return fmt.Sprintf(`oidc-issuers:
  %[1]s: {issuer-url: %[1]s, client-id: sigstore, type: email}
  %[2]s: {issuer-url: %[2]s, client-id: sigstore, type: ci-provider, ci-provider: github-workflow}
ci-issuer-metadata:
  github-workflow:
    default-template-values: {url: "https://github.com"}
    extension-templates:
      github-workflow-trigger: event_name
      github-workflow-sha: sha
      github-workflow-name: workflow
      github-workflow-repository: repository
      github-workflow-ref: ref
      build-signer-uri: "{{ .url }}/{{ .job_workflow_ref }}"
      source-repository-uri: "{{ .url }}/{{ .repository }}"
      source-repository-ref: ref
    subject-alternative-name-template: "{{ .url }}/{{ .job_workflow_ref }}"
`, mail, github)
}

// issuer is an OpenID Connect provider that signs what it is asked to.
type issuer struct {
	url string
	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys", "authorization_endpoint": i.url + "/auth", "token_endpoint": i.url + "/token",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"ES256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		point, err := key.PublicKey.Bytes() // 4, x, y
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, map[string]any{"keys": []any{map[string]any{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1",
			"x": b64(point[1:33]), "y": b64(point[33:])}}})
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	i.url = srv.URL
	return i
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// token signs claims for Sigstore.
func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.url, "aud": "sigstore", "iat": time.Now().Unix(), "nbf": time.Now().Add(-5 * time.Second).Unix(), "exp": time.Now().Add(10 * time.Minute).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	body, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	text := b64([]byte(`{"alg":"ES256","kid":"1","typ":"JWT"}`)) + "." + b64(body)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	sig := make([]byte, 64)
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return text + "." + b64(sig)
}

const workflow = "krmcat/krmcat/.github/workflows/release.yml@refs/tags/v1.0.0"

// workflowToken is what GitHub would give to a job of the workflow.
func (s *stack) workflowToken() string {
	s.t.Helper()
	return s.github.token(s.t, map[string]any{"sub": "repo:krmcat/krmcat:ref:refs/tags/v1.0.0", "event_name": "push", "sha": "abc", "workflow": "release",
		"repository": "krmcat/krmcat", "ref": "refs/tags/v1.0.0", "job_workflow_ref": workflow})
}

func (s *stack) mailToken() string {
	s.t.Helper()
	return s.mail.token(s.t, map[string]any{"sub": "release", "email": "release@krmcat.test", "email_verified": true})
}

// newCTLog is a certificate log that signs real certificate timestamps, but
// keeps no tree. There is none to build here.
func newCTLog(t *testing.T, pub string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := publicPEM(t, key.Public())
	if err := os.WriteFile(pub, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(text))
	id := sha256.Sum256(block.Bytes)
	mux := http.NewServeMux()
	for path, kind := range map[string]ct.LogEntryType{"/ct/v1/add-chain": ct.X509LogEntryType, "/ct/v1/add-pre-chain": ct.PrecertLogEntryType} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			answer, err := certificateTimestamp(r, kind, key, id)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_ = json.NewEncoder(w).Encode(answer)
		})
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

func certificateTimestamp(r *http.Request, kind ct.LogEntryType, key *ecdsa.PrivateKey, id [32]byte) (*ct.AddChainResponse, error) {
	var req ct.AddChainRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&req); err != nil {
		return nil, err
	}
	var chain []*ctx509.Certificate
	for _, der := range req.Chain {
		cert, err := ctx509.ParseCertificate(der)
		if ctx509.IsFatal(err) {
			return nil, err
		}
		chain = append(chain, cert)
	}
	now := uint64(time.Now().UnixMilli())
	leaf, err := ct.MerkleTreeLeafFromChain(chain, kind, now)
	if err != nil {
		return nil, err
	}
	sct := ct.SignedCertificateTimestamp{SCTVersion: ct.V1, LogID: ct.LogID{KeyID: id}, Timestamp: now}
	input, err := ct.SerializeSCTSignatureInput(sct, ct.LogEntry{Leaf: *leaf})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(input)
	sig, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	signed, err := tls.Marshal(ct.DigitallySigned{Algorithm: tls.SignatureAndHashAlgorithm{Hash: tls.SHA256, Signature: tls.ECDSA}, Signature: sig})
	if err != nil {
		return nil, err
	}
	return &ct.AddChainResponse{SCTVersion: ct.V1, ID: id[:], Timestamp: now, Signature: signed}, nil
}
