// Package bench measures signing and verifying: in the process, and against
// the cosign commands with run.sh.
package bench

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/krmcat/krmcat/registry/regtest"
	"github.com/krmcat/krmcat/signing"
)

func newRepository(t testing.TB, host, name string) *remote.Repository {
	t.Helper()
	repo, err := remote.NewRepository(host + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	return repo
}

func push(t testing.TB, repo oras.Target, body string) ocispec.Descriptor {
	t.Helper()
	layer, err := oras.PushBytes(t.Context(), repo, "text/plain", []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	desc, err := oras.PackManifest(t.Context(), repo, oras.PackManifestVersion1_1, "application/vnd.example.v1", oras.PackManifestOptions{Layers: []ocispec.Descriptor{layer}})
	if err != nil {
		t.Fatal(err)
	}
	return desc
}

func BenchmarkLoadKey(b *testing.B) {
	pair, err := signing.GenerateKeyPair([]byte("x"))
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "cosign.key")
	if err := os.WriteFile(file, pair.Private, 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := signing.LoadSigner(b.Context(), signing.KeyOptions{Ref: file, Password: func() ([]byte, error) { return []byte("x"), nil }}); err != nil {
			b.Fatal(err)
		}
	}
}

func newSigner(b testing.TB) *signing.KeySigner {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	s, err := signing.NewKeySigner(key)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkSign(b *testing.B) {
	for name, opts := range map[string]signing.SignOptions{"bundle": {}, "legacy": {Legacy: true, NoBundle: true}} {
		b.Run(name, func(b *testing.B) {
			srv := regtest.NewServer(b)
			repo, s := newRepository(b, srv.Host, "r/a"), newSigner(b)
			n := 0
			for b.Loop() {
				n++
				b.StopTimer()
				d := push(b, repo, name+strconv.Itoa(n))
				b.StartTimer()
				if _, err := s.With(opts).Sign(b.Context(), repo, srv.Host+"/r/a", d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for name, opts := range map[string]signing.SignOptions{"bundle": {}, "legacy": {Legacy: true, NoBundle: true}} {
		b.Run(name, func(b *testing.B) {
			srv := regtest.NewServer(b)
			repo, s := newRepository(b, srv.Host, "r/a"), newSigner(b)
			d := push(b, repo, name)
			if _, err := s.With(opts).Sign(b.Context(), repo, srv.Host+"/r/a", d); err != nil {
				b.Fatal(err)
			}
			policy := signing.Policy{Keys: []any{s.PublicKey()}}
			for b.Loop() {
				if _, err := (signing.Checker{}).Verify(b.Context(), repo, srv.Host+"/r/a", d, policy); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAgainstCosign prints what run.sh is about. It asserts nothing about
// time, as machines differ.
func TestAgainstCosign(t *testing.T) {
	bin := os.Getenv("KRMCAT_BENCH_BIN")
	if bin == "" {
		t.Skip("use run.sh")
	}
	rounds, err := strconv.Atoi(os.Getenv("KRMCAT_BENCH_ROUNDS"))
	if err != nil || rounds < 1 {
		t.Fatal("KRMCAT_BENCH_ROUNDS is no number")
	}
	m := &meter{t: t, dir: t.TempDir(), times: map[string][]time.Duration{}, cpu: map[string][]time.Duration{}}
	bins := map[string]string{"krmcat": bin, "cosign 2.6.5": os.Getenv("KRMCAT_COSIGN2"), "cosign 3.1.3": os.Getenv("KRMCAT_COSIGN3")}
	m.run("", bin, "keygen")
	m.file("root.json", `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)

	srv := regtest.NewServer(t)
	repo := newRepository(t, srv.Host, "r/a")
	far, requests := farAway(t, srv.Host)
	signed := func(host, name string, opts signing.SignOptions) string {
		repo := newRepository(t, host, "r/a")
		s, err := signing.LoadSigner(t.Context(), signing.KeyOptions{Ref: filepath.Join(m.dir, "cosign.key"), Password: func() ([]byte, error) { return []byte("secret"), nil }})
		if err != nil {
			t.Fatal(err)
		}
		d := push(t, repo, name)
		if _, err := s.With(opts).Sign(t.Context(), repo, host+"/r/a", d); err != nil {
			t.Fatal(err)
		}
		return host + "/r/a@" + d.Digest.String()
	}
	legacy := signing.SignOptions{Legacy: true, NoBundle: true}
	artifacts := map[string]string{
		"bundle":             signed(srv.Host, "bundle", signing.SignOptions{}),
		"legacy":             signed(srv.Host, "legacy", legacy),
		"bundle, 10 ms away": signed(far, "bundle", signing.SignOptions{}),
		"legacy, 10 ms away": signed(far, "legacy", legacy),
	}
	theirs := func(ref string) []string {
		return []string{"verify", "--key", "cosign.pub", "--insecure-ignore-tlog=true", "--allow-insecure-registry", ref}
	}
	for range rounds {
		for name, b := range bins {
			m.run("1 start: "+name, b, "version")
		}
		for kind, ref := range artifacts {
			m.run("2 verify "+kind+": krmcat", bin, "verify-signature", ref, "--key", "cosign.pub")
			m.run("2 verify "+kind+": cosign 3.1.3", bins["cosign 3.1.3"], theirs(ref)...)
			more := theirs(ref)
			if strings.HasPrefix(kind, "bundle") {
				more = append(more, "--new-bundle-format", "--trusted-root", "root.json")
			}
			m.run("2 verify "+kind+": cosign 2.6.5", bins["cosign 2.6.5"], more...)
		}
	}
	for _, name := range []string{"krmcat", "cosign 3.1.3", "cosign 2.6.5"} {
		before := requests.Load()
		if name == "krmcat" {
			m.run("", bin, "verify-signature", artifacts["legacy, 10 ms away"], "--key", "cosign.pub")
		} else {
			m.run("", bins[name], theirs(artifacts["legacy, 10 ms away"])...)
		}
		fmt.Printf("%s sends %d requests to verify a signature in the older format\n", name, requests.Load()-before)
	}
	const many = 20
	for round := range max(1, rounds/5) {
		m.signMany("krmcat", bins, repo, srv.Host, round, many)
		m.signMany("cosign 2.6.5", bins, repo, srv.Host, round, many)
		m.signMany("cosign 3.1.3", bins, repo, srv.Host, round, many)
	}
	m.print()
}

// farAway is a way to the registry on which every answer takes 10 ms more, as
// most take that come over a network, and a count of them.
func farAway(t *testing.T, host string) (string, *atomic.Int64) {
	var n atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		time.Sleep(10 * time.Millisecond)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), &n
}

// meter runs commands and keeps how long they take.
type meter struct {
	t     *testing.T
	dir   string
	times map[string][]time.Duration
	cpu   map[string][]time.Duration
}

func (m *meter) file(name, text string) {
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *meter) run(name, bin string, args ...string) time.Duration {
	m.t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Dir = m.dir
	cmd.Env = []string{"HOME=" + m.dir, "PATH=" + os.Getenv("PATH"), "COSIGN_PASSWORD=secret", "HTTPS_PROXY=http://127.0.0.1:1"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	d := time.Since(start)
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", bin, strings.Join(args, " "), err, out.String())
	}
	if name != "" {
		m.times[name] = append(m.times[name], d)
		m.cpu[name] = append(m.cpu[name], cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	return d
}

// signMany signs fresh artifacts: krmcat all of them with one command, as
// krmcat publish does, cosign one by one, as there is no other way.
func (m *meter) signMany(name string, bins map[string]string, repo *remote.Repository, host string, round, n int) {
	var refs []string
	for i := range n {
		d := push(m.t, repo, fmt.Sprint(name, round, i))
		refs = append(refs, host+"/r/a@"+d.Digest.String())
	}
	var total, cpu time.Duration
	one := func(bin string, args ...string) {
		total += m.run("x", bin, args...)
		list := m.cpu["x"]
		cpu += list[len(list)-1]
	}
	switch name {
	case "krmcat":
		one(bins[name], append([]string{"sign", "--key", "cosign.key", "--legacy=false"}, refs...)...)
	default:
		for _, ref := range refs {
			args := []string{"sign", "--key", "cosign.key", "--tlog-upload=false", "--allow-insecure-registry", "--yes", "--new-bundle-format=true"}
			if name == "cosign 3.1.3" {
				args = append(args, "--use-signing-config=false")
			}
			one(bins[name], append(args, ref)...)
		}
	}
	delete(m.times, "x")
	delete(m.cpu, "x")
	key := fmt.Sprintf("3 sign %d: %s", n, name)
	m.times[key] = append(m.times[key], total)
	m.cpu[key] = append(m.cpu[key], cpu)
}

func median(list []time.Duration) time.Duration {
	l := slices.Sorted(slices.Values(list))
	return l[len(l)/2]
}

func (m *meter) print() {
	var names []string
	for n := range m.times {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		group, _, _ := strings.Cut(n, ": ")
		ours := median(m.times[group+": krmcat"])
		fmt.Printf("%-44s n=%-3d wall median %8.1f ms  cpu median %8.1f ms  %5.2f times krmcat\n", n[2:], len(m.times[n]),
			ms(median(m.times[n])), ms(median(m.cpu[n])), float64(median(m.times[n]))/float64(ours))
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
