package e2e

import (
	"strings"

	"github.com/krmcat/krmcat/signing"
)

// logged is the evidence that Rekor v1 gives alone: it vouches for the time, too.
var logged = signing.Evidence{Tlog: 1}

// withRekor1 is about the first version of Rekor: its entries promise inclusion at a
// time (the SET), and are all that the older format can hold.
func (w *world) withRekor1() {
	id := w.workflowID()

	// krmcat signs, in both formats at once and in each alone.
	for _, opts := range []signing.SignOptions{{}, {Legacy: true}, {Legacy: true, NoBundle: true}} {
		x := w.artifact()
		w.sign(w.keyless("rekor1.json", w.workflowToken()), x, opts)
		w.verify(true, x, id, signing.Evidence{})
		w.verify(true, x, id, logged)
		w.verify(true, x, id, full)
		w.verify(false, x, w.mailID(), logged)
		w.verify(false, x, id, signing.Evidence{Tlog: 2})
		w.verify(false, x, signing.Identity{Issuer: id.Issuer, SubjectPrefix: "https://github.com/evil/"}, logged)
		if !opts.NoBundle {
			w.cosign("cosign3", true, join(flags("verify"), identity(id), []string{x.at()})...)
			w.cosign("cosign2", true, join(flags("verify", "--new-bundle-format"), identity(id), []string{x.at()})...)
			w.cosign("cosign2", false, join(flags("verify", "--new-bundle-format"), identity(w.mailID()), []string{x.at()})...)
			continue
		}
		for _, bin := range []string{"cosign2", "cosign3"} {
			w.cosign(bin, true, join(flags("verify", "--offline"), identity(id), []string{x.at()})...)
			w.cosign(bin, false, join(flags("verify", "--offline"), identity(w.mailID()), []string{x.at()})...)
		}
	}

	// The log alone vouches for the time: no timestamp authority.
	services := w.services("rekor1.json")
	services.Timestamps = nil
	for _, opts := range []signing.SignOptions{{}, {Legacy: true, NoBundle: true}} {
		k, err := signing.NewKeylessSigner(services, w.workflowToken())
		if err != nil {
			w.t.Fatal(err)
		}
		x := w.artifact()
		w.sign(k, x, opts)
		w.verify(true, x, id, logged)
		w.verify(false, x, id, full)
		verify := join([]string{"verify", "--trusted-root", "trusted_root.json", "--allow-insecure-registry"}, identity(id))
		if opts.NoBundle {
			verify = append(verify, "--offline")
		}
		w.cosign("cosign3", true, join(verify, []string{x.at()})...)
		if !opts.NoBundle {
			verify = append(verify, "--new-bundle-format")
		}
		w.cosign("cosign2", true, join(verify, []string{x.at()})...)
	}

	// They sign, krmcat verifies.
	w.write("token", w.workflowToken())
	common := []string{"--identity-token", "token", "--allow-insecure-registry", "--yes"}
	urls := []string{"--fulcio-url", w.fulcio, "--rekor-url", w.rekor1}
	for name, args := range map[string][]string{
		"cosign3 bundle":              {"cosign3", "sign", "--signing-config", "rekor1.json", "--trusted-root", "trusted_root.json"},
		"cosign3 legacy":              join([]string{"cosign3", "sign", "--new-bundle-format=false", "--use-signing-config=false"}, urls),
		"cosign2 bundle":              {"cosign2", "sign", "--signing-config", "rekor1.json", "--trusted-root", "trusted_root.json", "--new-bundle-format"},
		"cosign2 legacy":              join([]string{"cosign2", "sign"}, urls),
		"cosign2 legacy, timestamped": join([]string{"cosign2", "sign", "--timestamp-server-url", w.timestamp}, urls),
	} {
		x := w.artifact()
		w.cosign(args[0], true, join(args[1:], common, []string{x.at()})...)
		w.verify(true, x, id, logged)
		w.verify(false, x, w.mailID(), logged)
		stamped := strings.Contains(name, "bundle") || strings.Contains(name, "timestamped")
		w.verify(stamped, x, id, full)
		policy := signing.Policy{Identities: []signing.Identity{id}, Root: w.root, Evidence: logged, NoLegacy: true}
		if _, err := (signing.Checker{}).Verify(w.t.Context(), x.repo, x.name, x.desc, policy); (err == nil) != strings.Contains(name, "bundle") {
			w.t.Errorf("%s: as a bundle: %v", name, err)
		}
	}
}

// keysWithRekor1: the log vouches for the signature of a key.
func (w *world) keysWithRekor1() {
	k := w.keyPair("r1")
	services := w.services("rekor1.json")
	services.Fulcio, services.Timestamps = "", nil
	for _, opts := range []signing.SignOptions{{}, {Legacy: true, NoBundle: true}} {
		opts.Services = services
		x := w.artifact()
		if _, err := k.With(opts).Sign(w.t.Context(), x.repo, x.name, x.desc); err != nil {
			w.t.Fatal(err)
		}
		w.verifyKey(true, x, k, logged)
		w.verifyKey(false, x, k, full)
		verify := []string{"verify", "--key", "r1.pub", "--trusted-root", "trusted_root.json", "--allow-insecure-registry"}
		if opts.NoBundle {
			verify = append(verify, "--offline")
		}
		w.cosign("cosign3", true, join(verify, []string{x.at()})...)
		if !opts.NoBundle {
			verify = append(verify, "--new-bundle-format")
		}
		w.cosign("cosign2", true, join(verify, []string{x.at()})...)
	}
	common := []string{"--key", "r1.key", "--allow-insecure-registry", "--yes"}
	for _, args := range [][]string{
		{"cosign3", "sign", "--signing-config", "rekor1.json", "--trusted-root", "trusted_root.json"},
		{"cosign3", "sign", "--new-bundle-format=false", "--use-signing-config=false", "--rekor-url", w.rekor1},
		{"cosign2", "sign", "--signing-config", "rekor1.json", "--trusted-root", "trusted_root.json", "--new-bundle-format"},
		{"cosign2", "sign", "--rekor-url", w.rekor1},
	} {
		x := w.artifact()
		w.cosign(args[0], true, join(args[1:], common, []string{x.at()})...)
		w.verifyKey(true, x, k, logged)
		w.verifyKey(true, x, k, signing.Evidence{})
	}
}
