#!/bin/sh
# Compares krmcat with the cosign commands on this machine, in one run: start,
# fetch and verify as a process, sign and attach 20 artifacts. Prints medians of
# wall time and ratios. Needs KRMCAT_COSIGN2 and KRMCAT_COSIGN3 (paths of the
# commands), and uses a registry in memory on the loopback interface.
#
#	KRMCAT_COSIGN2=… KRMCAT_COSIGN3=… signing/bench/run.sh [ROUNDS]
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -trimpath -ldflags="-s -w" -o "$work/krmcat" ./cmd/krmcat
KRMCAT_BENCH_BIN=$work/krmcat KRMCAT_BENCH_ROUNDS=${1:-20} go test -count=1 -run '^TestAgainstCosign$' -v ./signing/bench | grep -v '^=== '
