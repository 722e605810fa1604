#!/bin/sh
# The whole way of a function, on this machine: serve, publish, sign, verify,
# find in a catalog, run. Each command is printed as you could type it.
#
#   make demo                leaves the site running until Ctrl-C
#   make demo DEMO_EXIT=1    ends by itself
set -eu

cd "$(dirname "$0")/.."
repo=$PWD
PATH="$repo/bin:$PATH"
export PATH

tmp=$(mktemp -d "${TMPDIR:-/tmp}/krmcat-demo.XXXXXX")
server=
engine=
HOST=
cleanup() {
	trap - EXIT INT TERM HUP
	if [ -n "$server" ]; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	if [ -n "$engine" ] && [ -n "$HOST" ]; then
		"$engine" images --format '{{.Repository}} {{.ID}}' | while read -r image id; do
			case $image in "$HOST"/*) "$engine" rmi -f "$id" >/dev/null 2>&1 || true ;; esac
		done
	fi
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'cleanup; exit 130' INT
trap 'cleanup; exit 143' TERM HUP

# Nothing here touches your own keys, caches or credentials.
XDG_CACHE_HOME="$tmp/cache" DOCKER_CONFIG="$tmp/docker" COSIGN_PASSWORD=demo
export XDG_CACHE_HOME DOCKER_CONFIG COSIGN_PASSWORD
mkdir "$DOCKER_CONFIG"
echo '{}' >"$DOCKER_CONFIG/config.json"

say() { printf '\n# %s\n' "$*"; }

# run prints a command and runs it.
run() {
	printf '$ %s\n' "$*"
	eval "$*"
}

# fails is run for a command that has to fail, which is its point.
fails() {
	printf '$ %s\n' "$*"
	code=0
	eval "$*" || code=$?
	if [ "$code" -eq 0 ]; then
		echo "demo: that should have failed" >&2
		exit 1
	fi
	printf '(exit code %s)\n' "$code"
}

command -v krmcat >/dev/null || { echo "demo: no bin/krmcat: run make demo" >&2; exit 1; }
for fn in set-labels require-limits; do
	[ -d "examples/$fn/dist/image" ] || { echo "demo: examples/$fn is not built: run make demo" >&2; exit 1; }
done
work="$tmp/work"
mkdir "$work"
cp -R examples/set-labels examples/set-replicas examples/require-limits examples/shop "$work/"
cd "$work"

say "A server with a registry, catalogs and a site, on a free port and a folder of its own"
echo '$ krmcat serve --data data --listen localhost:0 --addr-file addr.txt &'
krmcat serve --data "$tmp/data" --listen localhost:0 --addr-file "$tmp/addr.txt" --log-level warn >"$tmp/serve.log" 2>&1 &
server=$!
tries=0
while [ ! -s "$tmp/addr.txt" ]; do
	tries=$((tries + 1))
	if ! kill -0 "$server" 2>/dev/null || [ "$tries" -gt 300 ]; then
		echo "demo: the server did not start:" >&2
		cat "$tmp/serve.log" >&2
		exit 1
	fi
	sleep 0.1
done
HOST=$(cat "$tmp/addr.txt")
run "HOST=$HOST"

say "A key pair to sign with, in the format of cosign"
run 'export COSIGN_PASSWORD=demo'
run 'krmcat keygen'

say "Three functions: two Go programs, each as executables for four platforms and as a container image, and a script"
run 'krmcat validate */function.yaml'
for fn in set-labels set-replicas require-limits; do
	run "krmcat publish $fn/function.yaml \$HOST/examples/$fn:v1.0.0 --key cosign.key"
done

say "A catalog of them, signed as well"
run 'krmcat catalog create examples --key cosign.pub oci://$HOST/examples/set-labels:v1.0.0 oci://$HOST/examples/set-replicas:v1.0.0 oci://$HOST/examples/require-limits:v1.0.0 > catalog.yaml'
run 'krmcat publish catalog.yaml $HOST/examples/catalog:latest --key cosign.key'
run 'krmcat view http://$HOST/catalog.yaml'

for e in "${KRM_FN_RUNTIME:-}" docker podman nerdctl; do
	if [ -n "$e" ] && command -v "$e" >/dev/null && "$e" info >/dev/null 2>&1; then
		engine=$e
		break
	fi
done

say "Is all that true? Schema, digests, signatures, and each function on its own examples"
run 'krmcat verify oci://$HOST/examples/catalog:latest --key cosign.pub'

say "With another key, nothing is taken"
run 'krmcat keygen --output-key-prefix other'
fails 'krmcat pull $HOST/examples/set-labels:v1.0.0 --dir pulled --key other.pub'
run 'krmcat pull $HOST/examples/set-labels:v1.0.0 --dir pulled --key cosign.pub'

say "Someone has resources and says what they want: the apiVersion and kind of a functionConfig find the function"
run 'cat shop/functions/labels.yaml'
fails 'krmcat run shop/resources --catalog http://$HOST/catalog.yaml --fn-config shop/functions/labels.yaml --allow-exec'

say "A catalog has to be trusted first, and programs have to be allowed"
run 'krmcat run shop/resources --catalog http://$HOST/catalog.yaml --trusted-catalog http://$HOST/catalog.yaml --fn-config shop/functions/labels.yaml --allow-exec --dry-run'
run 'krmcat run shop/resources --catalog http://$HOST/catalog.yaml --trusted-catalog http://$HOST/catalog.yaml --fn-config shop/functions/labels.yaml --allow-exec'

if [ -n "$engine" ]; then
	say "In a container of $engine it is the same: without --allow-exec the image is used"
	run 'krmcat run shop/resources --catalog http://$HOST/catalog.yaml --trusted-catalog http://$HOST/catalog.yaml --fn-config shop/functions/labels.yaml -o again'
	run 'diff -r shop/resources again && echo no difference'
else
	say "Left out: the run in a container. There is no docker, podman or nerdctl here that works."
fi

say "A pipeline: labels, replicas by environment, and a validator at its end"
run 'cat shop/pipeline.yaml'
run 'krmcat run shop/resources --pipeline shop/pipeline.yaml --catalog http://$HOST/catalog.yaml --trusted-catalog http://$HOST/catalog.yaml --allow-exec'
run 'cat shop/resources/web.yaml'

say "Without limits, the validator stops the pipeline, and nothing is written"
run "sed '/limits:/d' shop/resources/web.yaml > web.yaml && mv web.yaml shop/resources/web.yaml"
fails 'krmcat run shop/resources --pipeline shop/pipeline.yaml --catalog http://$HOST/catalog.yaml --trusted-catalog http://$HOST/catalog.yaml --allow-exec'

say "The site is at http://$HOST/ and the catalog at http://$HOST/catalog.yaml"
if [ "${DEMO_EXIT:-}" = 1 ]; then
	exit 0
fi
cat <<EOF2
# The files of this demo are in $work. Try, in another terminal:

    cd $work
    curl http://$HOST/catalog.yaml
    oras pull --plain-http $HOST/examples/catalog:latest
    cosign verify --allow-http-registry --insecure-ignore-tlog --key cosign.pub $HOST/examples/set-labels:v1.0.0

# Ctrl-C ends it and removes everything.
EOF2
wait "$server"
