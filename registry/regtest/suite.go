package regtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/krmcat/krmcat/registry/regstore"
)

// TestDriver runs the suite that every driver passes. open returns an empty
// store for each test, and closes it in a cleanup.
func TestDriver(t *testing.T, open func(t *testing.T) regstore.Driver) {
	for name, f := range map[string]func(*testing.T, regstore.Driver){
		"Empty":             testEmpty,
		"Blobs":             testBlobs,
		"BlobsBySHA512":     testBlobsBySHA512,
		"Uploads":           testUploads,
		"UploadFailures":    testUploadFailures,
		"Mount":             testMount,
		"DeleteBlob":        testDeleteBlob,
		"Manifests":         testManifests,
		"ManifestSubject":   testSubject,
		"MissingReferences": testMissing,
		"Tags":              testTags,
		"ImmutableTags":     testImmutableTags,
		"DeleteManifest":    testDeleteManifest,
		"Repositories":      testRepositories,
		"Usage":             testUsage,
		"ConcurrentPushes":  testConcurrentPushes,
		"ImmutableTagRace":  testImmutableTagRace,
		"ConcurrentSigners": testConcurrentSigners,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open(t))
		})
	}
}

const repo = "publisher/group/set-labels"

var unknownDigest = digest.FromString("nobody has this")

func wantNotExist(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got error %v, want fs.ErrNotExist", what, err)
	}
}

func noError(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func testEmpty(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	_, err := s.Resolve(ctx, repo, "v1")
	wantNotExist(t, "Resolve", err)
	_, _, err = s.Manifest(ctx, repo, string(unknownDigest))
	wantNotExist(t, "Manifest", err)
	_, err = s.FetchManifest(ctx, repo, unknownDigest)
	wantNotExist(t, "FetchManifest", err)
	_, err = s.StatBlob(ctx, repo, unknownDigest)
	wantNotExist(t, "StatBlob", err)
	_, err = s.FetchBlob(ctx, repo, unknownDigest)
	wantNotExist(t, "FetchBlob", err)
	wantNotExist(t, "MountBlob", s.MountBlob(ctx, repo, "other/repository", unknownDigest))
	wantNotExist(t, "DeleteManifest", s.DeleteManifest(ctx, repo, unknownDigest))
	wantNotExist(t, "DeleteTag", s.DeleteTag(ctx, repo, "v1"))
	wantNotExist(t, "DeleteBlob", s.DeleteBlob(ctx, repo, unknownDigest))
	for _, err := range s.Tags(ctx, repo, "") {
		wantNotExist(t, "Tags", err)
	}
	for r, err := range s.Repositories(ctx, "") {
		t.Errorf("Repositories: got %q, %v", r, err)
	}
	for d, err := range s.Referrers(ctx, repo, unknownDigest, "") {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Referrers: got %v, %v", d, err)
		}
	}
}

func readBlob(t *testing.T, s regstore.Driver, repository string, d digest.Digest) []byte {
	t.Helper()
	rc, err := s.FetchBlob(t.Context(), repository, d)
	noError(t, "FetchBlob", err)
	defer func() { _ = rc.Close() }()
	b, err := io.ReadAll(rc)
	noError(t, "reading the blob", err)
	return b
}

func testBlobs(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	for _, size := range []int{0, 1, 4096, 1 << 20} {
		b := Random(uint64(size), size)
		d := PutBlob(ctx, t, s, repo, b)
		PutBlob(ctx, t, s, repo, b) // the same again is success
		n, err := s.StatBlob(ctx, repo, d)
		noError(t, "StatBlob", err)
		if n != int64(size) {
			t.Errorf("StatBlob: got %d, want %d", n, size)
		}
		if got := readBlob(t, s, repo, d); !bytes.Equal(got, b) {
			t.Errorf("blob of %d bytes came back as %d other ones", size, len(got))
		}
		if _, err := s.StatBlob(ctx, "other/repository", d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("blob is in another repository: %v", err)
		}
	}
	b := Random(7, 10000)
	d := PutBlob(ctx, t, s, repo, b)
	rsc, size, err := s.OpenBlob(ctx, repo, d)
	noError(t, "OpenBlob", err)
	defer func() { _ = rsc.Close() }()
	if size != 10000 {
		t.Errorf("OpenBlob: size %d, want 10000", size)
	}
	for _, at := range []int64{9000, 0, 5000} {
		_, err := rsc.Seek(at, io.SeekStart)
		noError(t, "Seek", err)
		got := make([]byte, 1000)
		_, err = io.ReadFull(rsc, got)
		noError(t, "Read", err)
		if !bytes.Equal(got, b[at:at+1000]) {
			t.Errorf("wrong bytes at %d", at)
		}
	}
	if n, err := rsc.Seek(0, io.SeekEnd); err != nil || n != 10000 {
		t.Errorf("Seek to the end: %d, %v", n, err)
	}
}

func testBlobsBySHA512(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	b := Random(512, 3000)
	d := digest.SHA512.FromBytes(b)
	noError(t, "FinishUpload", s.FinishUpload(ctx, repo, "", regstore.Chunk{Body: bytes.NewReader(b), Offset: -1, Size: -1}, d))
	if got := readBlob(t, s, repo, d); !bytes.Equal(got, b) {
		t.Error("other bytes came back")
	}
	_, err := s.StatBlob(ctx, repo, digest.FromBytes(b))
	wantNotExist(t, "the same content by sha256", err)
}

func chunk(b []byte, offset int64) regstore.Chunk {
	return regstore.Chunk{Body: bytes.NewReader(b), Offset: offset, Size: int64(len(b))}
}

func testUploads(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	b := Random(3, 300_000)
	id, err := s.StartUpload(ctx, repo)
	noError(t, "StartUpload", err)
	if strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" || id == "" {
		t.Errorf("upload id %q has other characters than letters, digits, '-' and '_'", id)
	}
	size := func(want int64) {
		t.Helper()
		n, err := s.UploadSize(ctx, repo, id)
		noError(t, "UploadSize", err)
		if n != want {
			t.Errorf("UploadSize: got %d, want %d", n, want)
		}
	}
	size(0)
	id, n, err := s.AppendUpload(ctx, repo, id, chunk(b[:100_000], 0))
	noError(t, "AppendUpload", err)
	if n != 100_000 {
		t.Errorf("AppendUpload: got %d, want 100000", n)
	}
	// A chunk that does not start at the end is refused and changes nothing.
	for _, at := range []int64{0, 99_999, 100_001} {
		_, _, err = s.AppendUpload(ctx, repo, id, chunk(b[at:at+10], at))
		var offset *regstore.OffsetError
		if !errors.As(err, &offset) || offset.Size != 100_000 {
			t.Errorf("chunk at %d: got %v, want an OffsetError with size 100000", at, err)
		}
	}
	size(100_000)
	id, _, err = s.AppendUpload(ctx, repo, id, regstore.Chunk{Body: bytes.NewReader(b[100_000:200_000]), Offset: -1, Size: -1})
	noError(t, "AppendUpload without an offset", err)
	size(200_000)
	d := digest.FromBytes(b)
	var offset *regstore.OffsetError
	if err := s.FinishUpload(ctx, repo, id, chunk(b[:10], 0), d); !errors.As(err, &offset) {
		t.Errorf("last chunk out of order: got %v, want an OffsetError", err)
	}
	noError(t, "FinishUpload", s.FinishUpload(ctx, repo, id, chunk(b[200_000:], 200_000), d))
	if got := readBlob(t, s, repo, d); !bytes.Equal(got, b) {
		t.Error("other bytes came back")
	}
	if _, err := s.UploadSize(ctx, repo, id); !errors.Is(err, regstore.ErrUploadUnknown) {
		t.Errorf("finished upload: got %v, want ErrUploadUnknown", err)
	}

	// All chunks first, then the end without a body.
	id, err = s.StartUpload(ctx, repo)
	noError(t, "StartUpload", err)
	c := Random(4, 1000)
	id, _, err = s.AppendUpload(ctx, repo, id, chunk(c, 0))
	noError(t, "AppendUpload", err)
	noError(t, "FinishUpload", s.FinishUpload(ctx, repo, id, regstore.Chunk{Offset: -1}, digest.FromBytes(c)))
	if got := readBlob(t, s, repo, digest.FromBytes(c)); !bytes.Equal(got, c) {
		t.Error("other bytes came back")
	}
}

func testUploadFailures(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	b := Random(5, 1000)
	d := digest.FromBytes(b)
	if err := s.FinishUpload(ctx, repo, "", chunk(b[1:], -1), d); !errors.Is(err, regstore.ErrDigest) {
		t.Errorf("wrong content: got %v, want ErrDigest", err)
	}
	_, err := s.StatBlob(ctx, repo, d)
	wantNotExist(t, "blob after wrong content", err)

	id, err := s.StartUpload(ctx, repo)
	noError(t, "StartUpload", err)
	id, _, err = s.AppendUpload(ctx, repo, id, chunk(b[:10], 0))
	noError(t, "AppendUpload", err)
	if err := s.FinishUpload(ctx, repo, id, chunk(b[11:], 10), d); !errors.Is(err, regstore.ErrDigest) {
		t.Errorf("wrong content in the last chunk: got %v, want ErrDigest", err)
	}
	_, err = s.StatBlob(ctx, repo, d)
	wantNotExist(t, "blob after a wrong last chunk", err)

	// Unknown uploads, and those of another repository.
	id, err = s.StartUpload(ctx, repo)
	noError(t, "StartUpload", err)
	id, _, err = s.AppendUpload(ctx, repo, id, chunk(b[:10], 0))
	noError(t, "AppendUpload", err)
	for _, at := range [][2]string{{"other/repository", id}, {repo, "unknown"}, {repo, "../../" + id}, {repo, ""}} {
		if _, err := s.UploadSize(ctx, at[0], at[1]); !errors.Is(err, regstore.ErrUploadUnknown) {
			t.Errorf("UploadSize of %q: got %v, want ErrUploadUnknown", at, err)
		}
		if _, _, err := s.AppendUpload(ctx, at[0], at[1], chunk(b, -1)); !errors.Is(err, regstore.ErrUploadUnknown) {
			t.Errorf("AppendUpload of %q: got %v, want ErrUploadUnknown", at, err)
		}
		if err := s.CancelUpload(ctx, at[0], at[1]); !errors.Is(err, regstore.ErrUploadUnknown) {
			t.Errorf("CancelUpload of %q: got %v, want ErrUploadUnknown", at, err)
		}
		if at[1] != "" {
			if err := s.FinishUpload(ctx, at[0], at[1], chunk(b[10:], 10), d); !errors.Is(err, regstore.ErrUploadUnknown) {
				t.Errorf("FinishUpload of %q: got %v, want ErrUploadUnknown", at, err)
			}
		}
	}

	// A body that breaks off: the upload goes on from where it is.
	broken := errors.New("connection reset")
	_, _, err = s.AppendUpload(ctx, repo, id, regstore.Chunk{Body: io.MultiReader(bytes.NewReader(b[10:500]), iotest.ErrReader(broken)), Offset: 10, Size: 990})
	if !errors.Is(err, broken) {
		t.Errorf("AppendUpload with a broken body: got %v, want the body's error", err)
	}
	at, err := s.UploadSize(ctx, repo, id)
	noError(t, "UploadSize", err)
	if at != 10 && at != 500 {
		t.Errorf("UploadSize after a broken body: got %d, want 10 or 500", at)
	}
	noError(t, "FinishUpload", s.FinishUpload(ctx, repo, id, chunk(b[at:], at), d))

	id, err = s.StartUpload(ctx, repo)
	noError(t, "StartUpload", err)
	id, _, err = s.AppendUpload(ctx, repo, id, chunk(b, 0))
	noError(t, "AppendUpload", err)
	noError(t, "CancelUpload", s.CancelUpload(ctx, repo, id))
	if _, err := s.UploadSize(ctx, repo, id); !errors.Is(err, regstore.ErrUploadUnknown) {
		t.Errorf("cancelled upload: got %v, want ErrUploadUnknown", err)
	}
	if err := s.FinishUpload(ctx, repo, "", regstore.Chunk{Body: iotest.ErrReader(broken), Offset: -1, Size: 10}, unknownDigest); !errors.Is(err, broken) {
		t.Errorf("FinishUpload with a broken body: got %v, want the body's error", err)
	}
}

func testMount(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	b := Random(6, 1000)
	d := PutBlob(ctx, t, s, repo, b)
	noError(t, "MountBlob", s.MountBlob(ctx, "a/mounted", repo, d))
	noError(t, "MountBlob again", s.MountBlob(ctx, "a/mounted", repo, d))
	mounted := []string{"a/mounted"}
	if err := s.MountBlob(ctx, "b/mounted", "", d); !errors.Is(err, errors.ErrUnsupported) {
		noError(t, "MountBlob from anywhere", err)
		mounted = append(mounted, "b/mounted")
	}
	for _, r := range mounted {
		if got := readBlob(t, s, r, d); !bytes.Equal(got, b) {
			t.Errorf("%s: other bytes came back", r)
		}
	}
	wantNotExist(t, "MountBlob from a repository without it", s.MountBlob(ctx, "c/mounted", "d/empty", d))
	wantNotExist(t, "MountBlob of an unknown blob", s.MountBlob(ctx, "c/mounted", repo, unknownDigest))
	noError(t, "DeleteBlob", s.DeleteBlob(ctx, repo, d))
	if got := readBlob(t, s, "a/mounted", d); !bytes.Equal(got, b) {
		t.Error("a mounted blob went with the one it was mounted from")
	}
}

func testDeleteBlob(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil, Random(8, 100))
	Put(ctx, t, s, repo, a, "v1")
	d := digest.FromBytes(a.Blobs[1])
	if err := s.DeleteBlob(ctx, repo, d); !errors.Is(err, regstore.ErrInUse) {
		t.Errorf("DeleteBlob under a manifest: got %v, want ErrInUse", err)
	}
	noError(t, "DeleteManifest", s.DeleteManifest(ctx, repo, a.Descriptor.Digest))
	noError(t, "DeleteBlob", s.DeleteBlob(ctx, repo, d))
	_, err := s.StatBlob(ctx, repo, d)
	wantNotExist(t, "StatBlob", err)
	wantNotExist(t, "DeleteBlob again", s.DeleteBlob(ctx, repo, d))
	PutBlob(ctx, t, s, repo, a.Blobs[1]) // and it may come back
	if got := readBlob(t, s, repo, d); !bytes.Equal(got, a.Blobs[1]) {
		t.Error("other bytes came back")
	}
}

func testManifests(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil, Random(9, 100))
	Put(ctx, t, s, repo, a, "v1", "latest")
	Put(ctx, t, s, repo, a, "v1") // the same again is success
	for _, ref := range []string{"v1", "latest", string(a.Descriptor.Digest)} {
		desc, err := s.Resolve(ctx, repo, ref)
		noError(t, "Resolve", err)
		if !sameDescriptor(desc, a.Descriptor) {
			t.Errorf("Resolve %s: got %v, want %v", ref, desc, a.Descriptor)
		}
		desc, content, err := s.Manifest(ctx, repo, ref)
		noError(t, "Manifest", err)
		if !sameDescriptor(desc, a.Descriptor) || !bytes.Equal(content, a.Manifest) {
			t.Errorf("Manifest %s: got %v and %d bytes", ref, desc, len(content))
		}
	}
	content, err := s.FetchManifest(ctx, repo, a.Descriptor.Digest)
	noError(t, "FetchManifest", err)
	if !bytes.Equal(content, a.Manifest) {
		t.Error("FetchManifest: other bytes")
	}
	_, err = s.Resolve(ctx, "other/repository", "v1")
	wantNotExist(t, "Resolve in another repository", err)

	// By sha512 it is another manifest with the same bytes.
	long := *a
	long.Descriptor.Digest = digest.SHA512.FromBytes(a.Manifest)
	Put(ctx, t, s, repo, &long, "long")
	desc, err := s.Resolve(ctx, repo, "long")
	noError(t, "Resolve", err)
	if desc.Digest != long.Descriptor.Digest {
		t.Errorf("Resolve: got %s, want %s", desc.Digest, long.Descriptor.Digest)
	}

	index := NewIndex("", nil, a.Descriptor)
	Put(ctx, t, s, repo, index, "latest") // moves
	desc, content, err = s.Manifest(ctx, repo, "latest")
	noError(t, "Manifest", err)
	if desc.MediaType != ocispec.MediaTypeImageIndex || !bytes.Equal(content, index.Manifest) {
		t.Errorf("index came back as %v", desc)
	}
	large := NewArtifact(strings.Repeat("x", 2_000_000), nil)
	Put(ctx, t, s, repo, large, "large")
	_, content, err = s.Manifest(ctx, repo, "large")
	noError(t, "Manifest", err)
	if !bytes.Equal(content, large.Manifest) {
		t.Error("large manifest: other bytes")
	}
}

func sameDescriptor(a, b ocispec.Descriptor) bool {
	return a.MediaType == b.MediaType && a.Digest == b.Digest && a.Size == b.Size
}

func referrers(t *testing.T, s regstore.Driver, subject digest.Digest, artifactType string) []ocispec.Descriptor {
	t.Helper()
	var list []ocispec.Descriptor
	for desc, err := range s.Referrers(t.Context(), repo, subject, artifactType) {
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		noError(t, "Referrers", err)
		list = append(list, desc)
	}
	if !slices.IsSortedFunc(list, func(a, b ocispec.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) }) {
		t.Error("referrers are not sorted by digest")
	}
	return list
}

func testSubject(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil, Random(10, 100))
	sig := NewArtifact("application/vnd.example.signature", &a.Descriptor, Random(11, 100))
	att := NewIndex("application/vnd.example.attestation", &a.Descriptor)
	Put(ctx, t, s, repo, sig) // before its subject, which is allowed
	Put(ctx, t, s, repo, a, "v1")
	Put(ctx, t, s, repo, att, "att")
	Put(ctx, t, s, repo, att)
	if got := referrers(t, s, a.Descriptor.Digest, ""); len(got) != 2 {
		t.Errorf("referrers: got %v, want 2", got)
	}
	got := referrers(t, s, a.Descriptor.Digest, "application/vnd.example.signature")
	if len(got) != 1 || !sameDescriptor(got[0], sig.Descriptor) ||
		got[0].ArtifactType != "application/vnd.example.signature" || got[0].Annotations["org.example.kind"] != "application/vnd.example.signature" {
		t.Errorf("referrers of one type: got %v", got)
	}
	if got := referrers(t, s, sig.Descriptor.Digest, ""); len(got) != 0 {
		t.Errorf("referrers of a signature: got %v, want none", got)
	}
	noError(t, "DeleteManifest", s.DeleteManifest(ctx, repo, sig.Descriptor.Digest))
	if got := referrers(t, s, a.Descriptor.Digest, ""); len(got) != 1 || got[0].Digest != att.Descriptor.Digest {
		t.Errorf("referrers after a deletion: got %v", got)
	}
	Put(ctx, t, s, repo, sig)
	if got := referrers(t, s, a.Descriptor.Digest, ""); len(got) != 2 {
		t.Errorf("referrers after the second push: got %v, want 2", got)
	}
	// Referrers outlive their subject and wait for its return.
	noError(t, "DeleteManifest", s.DeleteManifest(ctx, repo, a.Descriptor.Digest))
	if got := referrers(t, s, a.Descriptor.Digest, ""); len(got) != 2 {
		t.Errorf("referrers of a deleted subject: got %v, want 2", got)
	}
}

func testMissing(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil, Random(12, 100), Random(13, 100))
	PutBlob(ctx, t, s, repo, a.Blobs[0])
	PutBlob(ctx, t, s, repo, a.Blobs[1])
	PutBlob(ctx, t, s, "other/repository", a.Blobs[2]) // elsewhere does not count
	var missing *regstore.MissingError
	err := s.PutManifest(ctx, repo, a.Parse(t), []regstore.Tag{{Name: "v1"}})
	if !errors.As(err, &missing) || !slices.Equal(missing.Digests, []digest.Digest{digest.FromBytes(a.Blobs[2])}) {
		t.Errorf("PutManifest without a layer: got %v", err)
	}
	_, err = s.Resolve(ctx, repo, "v1")
	wantNotExist(t, "Resolve", err)
	_, err = s.Resolve(ctx, repo, string(a.Descriptor.Digest))
	wantNotExist(t, "Resolve", err)
	err = s.PutManifest(ctx, repo, NewIndex("", nil, a.Descriptor).Parse(t), nil)
	if !errors.As(err, &missing) || !slices.Equal(missing.Digests, []digest.Digest{a.Descriptor.Digest}) {
		t.Errorf("PutManifest of an index without its manifest: got %v", err)
	}
}

func tags(t *testing.T, s regstore.Driver, after string) []string {
	t.Helper()
	var list []string
	for tag, err := range s.Tags(t.Context(), repo, after) {
		noError(t, "Tags", err)
		list = append(list, tag)
	}
	return list
}

func testTags(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil)
	// Names that differ in case, and such as could be special in a storage.
	all := []string{"V1", "_", "__", "a-b", "a.b", "a..", "a_b", "con", "v1", "v1.0.0", "v1.10.0", "v1.2.0", strings.Repeat("T", 128)}
	slices.Sort(all)
	Put(ctx, t, s, repo, a, all...)
	if got := tags(t, s, ""); !slices.Equal(got, all) {
		t.Errorf("Tags: got %v, want %v", got, all)
	}
	for i, after := range all {
		if got := tags(t, s, after); !slices.Equal(got, all[i+1:]) {
			t.Errorf("Tags after %s: got %v, want %v", after, got, all[i+1:])
		}
	}
	if got := tags(t, s, "v1.1"); !slices.Equal(got, []string{"v1.10.0", "v1.2.0"}) {
		t.Errorf("Tags after a name that is no tag: got %v", got)
	}
	noError(t, "DeleteTag", s.DeleteTag(ctx, repo, "V1"))
	_, err := s.Resolve(ctx, repo, "V1")
	wantNotExist(t, "Resolve of a deleted tag", err)
	_, err = s.Resolve(ctx, repo, "v1")
	noError(t, "Resolve of a tag in the other case", err)
	wantNotExist(t, "DeleteTag again", s.DeleteTag(ctx, repo, "V1"))
	for tag := range s.Tags(ctx, repo, "") { // a reader may stop
		_ = tag
		break
	}
}

func testImmutableTags(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil, []byte("a"))
	b := NewArtifact("application/vnd.example", nil, []byte("b"))
	Put(ctx, t, s, repo, a)
	Put(ctx, t, s, repo, b)
	release := []regstore.Tag{{Name: "v1.0.0", Immutable: true}}
	noError(t, "PutManifest", s.PutManifest(ctx, repo, a.Parse(t), release))
	noError(t, "PutManifest of the same", s.PutManifest(ctx, repo, a.Parse(t), release))
	var taken *regstore.TagError
	for range 2 {
		err := s.PutManifest(ctx, repo, b.Parse(t), append(release, regstore.Tag{Name: "latest"}))
		if !errors.As(err, &taken) || taken.Digest != a.Descriptor.Digest || taken.Tag != "v1.0.0" {
			t.Errorf("PutManifest of another: got %v, want a TagError with %s", err, a.Descriptor.Digest)
		}
	}
	desc, err := s.Resolve(ctx, repo, "v1.0.0")
	noError(t, "Resolve", err)
	if desc.Digest != a.Descriptor.Digest {
		t.Error("the release moved")
	}
	_, err = s.Resolve(ctx, repo, "latest")
	wantNotExist(t, "a tag of the refused push", err)
}

func testDeleteManifest(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil, []byte("a"))
	b := NewArtifact("application/vnd.example", nil, []byte("b"))
	Put(ctx, t, s, repo, a, "one", "two")
	Put(ctx, t, s, repo, b, "three")
	noError(t, "DeleteManifest", s.DeleteManifest(ctx, repo, a.Descriptor.Digest))
	for _, ref := range []string{"one", "two", string(a.Descriptor.Digest)} {
		_, err := s.Resolve(ctx, repo, ref)
		wantNotExist(t, "Resolve "+ref, err)
	}
	if got := tags(t, s, ""); !slices.Equal(got, []string{"three"}) {
		t.Errorf("Tags: got %v, want [three]", got)
	}
	noError(t, "DeleteManifest", s.DeleteManifest(ctx, repo, b.Descriptor.Digest))
	if got := tags(t, s, ""); len(got) != 0 {
		t.Errorf("Tags: got %v, want none", got)
	}
	Put(ctx, t, s, repo, a, "one")
	if got := tags(t, s, ""); !slices.Equal(got, []string{"one"}) {
		t.Errorf("Tags: got %v, want [one]", got)
	}
}

func testRepositories(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil)
	// Where '/' sorts among the other characters matters.
	all := []string{"a", "a-b", "a-b/c", "a.b", "a/b", "a/b/c", "a/b-c", "a0", "a_b", "b/c", "blobs", "manifests/tags/list"}
	for _, r := range all {
		Put(ctx, t, s, r, a, "v1")
	}
	PutBlob(ctx, t, s, "only/blobs", []byte("x"))
	slices.Sort(all)
	for i := -1; i < len(all); i++ {
		after := ""
		if i >= 0 {
			after = all[i]
		}
		var got []string
		for r, err := range s.Repositories(ctx, after) {
			noError(t, "Repositories", err)
			got = append(got, r)
		}
		if !slices.Equal(got, all[i+1:]) {
			t.Errorf("Repositories after %q: got %v, want %v", after, got, all[i+1:])
		}
	}
	for r := range s.Repositories(ctx, "") { // a reader may stop
		_ = r
		break
	}
}

func testUsage(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	if n, err := s.Usage(ctx, repo); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the driver does not know")
	} else if n != 0 || err != nil {
		t.Errorf("Usage of nothing: got %d, %v", n, err)
	}
	a := NewArtifact("application/vnd.example", nil, Random(14, 1000))
	Put(ctx, t, s, repo, a, "v1")
	Put(ctx, t, s, repo, a, "v2")
	want := int64(2 + 1000 + len(a.Manifest))
	if n, err := s.Usage(ctx, repo); n != want || err != nil {
		t.Errorf("Usage: got %d, %v, want %d", n, err, want)
	}
}

func testConcurrentPushes(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	var wg sync.WaitGroup
	arts := make([]*Artifact, 16)
	shared := Random(15, 5000)
	for i := range arts {
		arts[i] = NewArtifact("application/vnd.example", nil, shared, Random(uint64(100+i), 2000))
	}
	for i := range 32 { // each twice, at the same time
		wg.Go(func() {
			if err := Push(ctx, s, repo, arts[i%16], fmt.Sprintf("t%d", i%16), "latest"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, a := range arts {
		desc, err := s.Resolve(ctx, repo, fmt.Sprintf("t%d", i))
		noError(t, "Resolve", err)
		if desc.Digest != a.Descriptor.Digest {
			t.Errorf("tag t%d points at %s, want %s", i, desc.Digest, a.Descriptor.Digest)
		}
		for _, b := range a.Blobs {
			if got := readBlob(t, s, repo, digest.FromBytes(b)); !bytes.Equal(got, b) {
				t.Error("other bytes came back")
			}
		}
	}
}

func testImmutableTagRace(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	for round := range 5 {
		tag := regstore.Tag{Name: fmt.Sprintf("v1.%d.0", round), Immutable: true}
		var wg sync.WaitGroup
		won := make([]bool, 8)
		arts := make([]*Artifact, len(won))
		for i := range arts {
			arts[i] = NewArtifact("application/vnd.example", nil, Random(uint64(round*100+i), 10))
			Put(ctx, t, s, repo, arts[i])
		}
		for i, a := range arts {
			m := a.Parse(t)
			wg.Go(func() {
				err := s.PutManifest(ctx, repo, m, []regstore.Tag{tag})
				won[i] = err == nil
				var taken *regstore.TagError
				if err != nil && !errors.As(err, &taken) {
					t.Errorf("PutManifest: %v", err)
				}
			})
		}
		wg.Wait()
		desc, err := s.Resolve(ctx, repo, tag.Name)
		noError(t, "Resolve", err)
		n := 0
		for i, ok := range won {
			if !ok {
				continue
			}
			n++
			if desc.Digest != arts[i].Descriptor.Digest {
				t.Errorf("round %d: a push was told that it won, but the release is another", round)
			}
		}
		if n != 1 {
			t.Errorf("round %d: %d pushes of one release won, want 1", round, n)
		}
	}
}

func testConcurrentSigners(t *testing.T, s regstore.Driver) {
	ctx := t.Context()
	a := NewArtifact("application/vnd.example", nil)
	Put(ctx, t, s, repo, a, "v1")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			sig := NewArtifact("application/vnd.example.signature", &a.Descriptor, fmt.Appendf(nil, "signature %d", i))
			if err := Push(ctx, s, repo, sig); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := referrers(t, s, a.Descriptor.Digest, ""); len(got) != 40 {
		t.Errorf("40 signers were told that they signed; %d signatures are listed", len(got))
	}
}
