#!/bin/sh
# Runs krmcat's keyless signing against the real Fulcio, timestamp authority
# and Rekor v2, and against cosign 2.6.5 and 3.1.3, without any network but the
# loopback interface of a namespace of its own (unshare, as root or with user
# namespaces). The services are built from the module proxy once, into a
# folder beside Go's cache, which takes some minutes.
#
# Why a namespace: the timestamp server also opens a port for metrics on every
# interface, and nothing here shall be able to ask the public services.
set -eu
cd "$(dirname "$0")"
tools=${KRMCAT_TOOLS:-$(dirname "$(go env GOCACHE)")/krmcat-tools}
mkdir -p "$tools"

build() { # NAME MODULE
	[ -x "$tools/$1" ] && return
	dir=$(mktemp -d)
	(cd "$dir" && GOFLAGS= GOBIN="$dir" go install "$2")
	rm -f "$dir/go.mod"
	mv "$dir"/* "$tools/$1"
	rmdir "$dir"
}
build fulcio github.com/sigstore/fulcio@v1.8.8
build timestamp-server github.com/sigstore/timestamp-authority/v2/cmd/timestamp-server@v2.1.3
build posix github.com/sigstore/rekor-tiles/v2/cmd/rekor-server/posix@v2.3.0
if [ -z "${KRMCAT_COSIGN2:-}" ]; then
	build cosign2 github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5
	KRMCAT_COSIGN2=$tools/cosign2
fi
if [ -z "${KRMCAT_COSIGN3:-}" ]; then
	build cosign3 github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
	KRMCAT_COSIGN3=$tools/cosign3
fi
export KRMCAT_COSIGN2 KRMCAT_COSIGN3

# krmcat's own go.mod says which versions are used; this one only adds to it,
# in a copy.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp go.mod "$work/go.mod"
cp ../../go.sum "$work/go.sum"
go test -mod=mod -modfile="$work/go.mod" -c -o "$work/e2e.test" .

run='ip link set lo up && exec "$0" -test.v -test.count=1 "$@"'
if [ "$(id -u)" = 0 ]; then
	KRMCAT_E2E=$tools unshare -n sh -c "$run" "$work/e2e.test" "$@"
else
	KRMCAT_E2E=$tools unshare -rn sh -c "$run" "$work/e2e.test" "$@"
fi
