#!/bin/sh
# Compares krmcat validate with kubeconform on 10,000 generated definitions and
# on one catalog of them, with the same schemas, and prints the ratios.
#
#   schema/bench/run.sh [NUMBER]
#
# Needs Go and the module proxy (for kubeconform v0.8.0). CPU seconds say more
# than wall seconds on a machine that is not idle.
set -eu
cd "$(dirname "$0")/../.."
n=${1:-10000}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

go build -o "$tmp/krmcat" ./cmd/krmcat
GOBIN="$tmp" GOFLAGS=-mod=mod go install github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
go run ./schema/bench/gen -n "$n" -dir "$tmp/data"
"$tmp/krmcat" schema KRMFunctionDefinition >"$tmp/definition.json"
"$tmp/krmcat" schema KRMFunctionCatalog >"$tmp/catalog.json"
cpus=$(getconf _NPROCESSORS_ONLN)

# measure NAME COMMAND...: the best of three runs by CPU, as NAME.{cpu,wall,rss}.
measure() {
	name=$1
	shift
	for _ in 1 2 3; do
		/usr/bin/env time -o "$tmp/time" -f '%U %S %e %M' "$@" >/dev/null 2>&1
		awk '{ printf "%.2f %.2f %d\n", $1 + $2, $3, $4 / 1024 }' "$tmp/time"
	done | sort -n | head -1 >"$tmp/$name"
}

measure krmcat-docs "$tmp/krmcat" validate --published "$tmp/data/docs"
measure kubeconform-docs "$tmp/kubeconform" -n "$cpus" -schema-location "$tmp/definition.json" "$tmp/data/docs"
measure krmcat-catalog "$tmp/krmcat" validate --published "$tmp/data/catalog.yaml"
measure kubeconform-catalog "$tmp/kubeconform" -n "$cpus" -schema-location "$tmp/catalog.json" "$tmp/data/catalog.yaml"

for what in docs catalog; do
	paste "$tmp/krmcat-$what" "$tmp/kubeconform-$what" | awk -v what="$what" -v n="$n" '{
		printf "%-8s krmcat      %6.2f s CPU %6.2f s wall %5d MB %7d functions per second\n", what, $1, $2, $3, n / $2
		printf "%-8s kubeconform %6.2f s CPU %6.2f s wall %5d MB %7d functions per second\n", what, $4, $5, $6, n / $5
		printf "%-8s ratio       %6.1f x CPU %6.1f x wall %5.2f x memory\n", what, $4 / $1, $5 / $2, $3 / $6
	}'
done

echo "parse against validate, one document, one goroutine:"
go test ./schema ./schema/internal/fastyaml ./internal/yamlpos -run '^$' -bench . -benchtime 2s | grep Benchmark
