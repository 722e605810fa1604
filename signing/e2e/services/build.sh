#!/bin/sh
# Builds Fulcio, the timestamp authority and both versions of Rekor, with
# Trillian under the first, into a folder beside Go's cache, unless they are
# there, and prints the folder. From a cold cache it takes some minutes.
set -eu
cd "$(dirname "$0")"
version=$(cat go.mod go.sum | sha256sum | cut -c1-12)
tools=${KRMCAT_TOOLS:-$(dirname "$(go env GOCACHE)")/krmcat-tools}/sigstore-$version
if [ ! -d "$tools" ]; then
	mkdir -p "$(dirname "$tools")"
	new=$(mktemp -d "$tools.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	GOFLAGS= GOWORK=off CGO_ENABLED=0 go build -o "$new/" tool
	# The tables that Trillian keeps in PostgreSQL.
	cp "$(go list -m -f '{{.Dir}}' github.com/google/trillian)/storage/postgresql/schema/storage.sql" "$new/trillian.sql"
	mv -T "$new" "$tools" 2>/dev/null || [ -d "$tools" ] # another may have been first
	trap - EXIT
	rm -rf "$new"
fi
echo "$tools"
