// The offline Sigstore stack is tested from a module of its own, so that what
// it needs stays out of krmcat's. See run.sh.
module github.com/krmcat/krmcat/signing/e2e

go 1.26.0

require github.com/krmcat/krmcat v0.0.0

replace github.com/krmcat/krmcat => ../..
