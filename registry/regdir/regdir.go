// Package regdir keeps the content of a registry in a folder.
//
// What a client was told is stored survives kill -9 and the loss of power,
// and no tag is ever visible without its content: files get their name last,
// and a tag its file after its manifest, which comes after its blobs. There is
// no database and no growing index to rewrite:
//
//	layout                               what this folder is
//	lock                                 held by the process that uses it
//	blobs/ALGORITHM/XX/HEX               content, once for all repositories
//	repositories/NAME/_blobs/ALG-HEX     empty: the repository has that blob
//	repositories/NAME/_manifests/ALG-HEX media type, newline, the manifest
//	repositories/NAME/_tags/TAG          the digest that the tag points at
//	repositories/NAME/_referrers/S/R     how the referrers of S list R
//	opening                              changes each time the folder is opened
//	uploads/                             unfinished uploads
//	tmp/                                 emptied at the start
//
// Components of repository names never begin with '_'. Tags that have upper
// case letters get a suffix that says which, for file systems that do not tell
// case apart.
package regdir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/internal/durable"
	"github.com/krmcat/krmcat/registry/regstore"
)

// layoutText is the content of the file layout.
const layoutText = "krmcat registry 1\n"

// Errors of [Open].
var (
	// ErrLocked: another process uses the folder.
	ErrLocked = durable.ErrLocked
	// ErrNotRegistry: the folder holds something else.
	ErrNotRegistry = errors.New("not a registry folder")
)

// Options are the optional settings of a [Store].
type Options struct {
	// Log gets what happens beside requests. Nil is silent.
	Log *slog.Logger
	// UploadTTL is how long an upload may rest before it is dropped; 0 is
	// 24 hours.
	UploadTTL time.Duration
	// MaxUploads is how many unfinished uploads there may be; 0 is 10,000.
	MaxUploads int
	// MustExist makes a folder that is not a registry yet an error, which
	// wraps [io/fs.ErrNotExist], instead of making it one.
	MustExist bool
}

// Store is a driver that keeps everything in a folder. Use [Open].
type Store struct {
	root string
	opts Options
	log  *slog.Logger
	lock *durable.Lock
	dirs *durable.Dirs

	// Order of locking: repository, blob or manifest, tag.
	repoLocks     stripes // held for reading while a manifest is stored
	blobLocks     stripes // held while a blob gets or loses its name
	manifestLocks stripes
	tagLocks      stripes

	sessions sync.Map // upload id -> *session
	uploads  atomic.Int64
	expired  atomic.Int64 // when uploads were last looked through, Unix time

	usage sync.Map // repository -> *atomic.Int64

	referrers referrerCache

	gcRunning sync.Mutex
	gc        atomic.Pointer[collection]

	flushed       chan struct{} // closed when what was found at the start is durable
	flushErr      error         // why it is not
	opening, last string        // see Opening
}

var _ regstore.Driver = (*Store)(nil)

// Open opens a registry folder, or makes one of a folder that is empty or
// does not exist. The folder belongs to the store until it is closed:
// another Open fails with [ErrLocked].
func Open(dir string, opts *Options) (*Store, error) {
	s := &Store{}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.UploadTTL == 0 {
		s.opts.UploadTTL = 24 * time.Hour
	}
	if s.opts.MaxUploads == 0 {
		s.opts.MaxUploads = 10_000
	}
	if s.log = s.opts.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.open(dir); err != nil {
		if s.lock != nil {
			_ = s.lock.Unlock() // the first error counts
		}
		return nil, fmt.Errorf("opening registry folder %s: %w", dir, err)
	}
	return s, nil
}

func (s *Store) open(dir string) error {
	root, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	s.root = root
	if s.opts.MustExist {
		_, err := os.Stat(root)
		if err == nil {
			err = recognize(root)
		}
		if err == nil {
			_, err = os.Stat(filepath.Join(root, "layout"))
		}
		if err != nil {
			return err
		}
	}
	if err := os.MkdirAll(root, 0o777); err != nil {
		return err
	}
	if err := recognize(root); err != nil {
		return err
	}
	if s.lock, err = durable.LockFile(filepath.Join(root, "lock")); err != nil {
		return writable(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "tmp")); err != nil {
		return writable(err)
	}
	s.dirs = durable.NewDirs(root)
	for _, d := range []string{"tmp", "uploads", "blobs", "repositories"} {
		if err := s.dirs.Make(filepath.Join(root, d)); err != nil {
			return writable(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "layout")); errors.Is(err, fs.ErrNotExist) {
		if err := durable.WriteFile(s.tmp(), filepath.Join(root, "layout"), []byte(layoutText)); err != nil {
			return writable(err)
		}
	}
	// Whether there is room to write shows now, not at the first push.
	if err := s.noteOpening(); err != nil {
		return writable(err)
	}
	s.flush()
	return s.countUploads()
}

// flush makes durable what is there: a process that was killed may have left
// names that are visible but not flushed. On a busy disk that can take a while,
// in which content can be read already; whatever relies on it waits (see
// settled).
func (s *Store) flush() {
	s.flushed = make(chan struct{})
	go func() {
		defer close(s.flushed)
		begin := time.Now()
		if err := durable.SyncAll(s.root); err != nil {
			s.flushErr = fmt.Errorf("flushing what the last process left: %w", storageError(err))
			s.log.Error("nothing can be stored", "error", s.flushErr)
		} else if took := time.Since(begin); took > time.Second {
			s.log.Info("what the last process left is on the disk now", "duration", took.Round(time.Millisecond))
		}
	}()
}

// settled waits until what was found at the start is durable. Everybody does
// who changes something, or tells a client that it need not send something:
// otherwise what is stored now could outlive what it refers to.
func (s *Store) settled(ctx context.Context) error {
	select {
	case <-s.flushed:
		return s.flushErr
	default:
	}
	select {
	case <-s.flushed:
		return s.flushErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Opening returns a name that was given to this opening of the folder, and the
// one that was given to the last opening before. Whoever remembers the latter
// knows that nobody else has changed anything in between.
func (s *Store) Opening() (this, last string) { return s.opening, s.last }

const maxOpening = 64

func (s *Store) noteOpening() error {
	path := filepath.Join(s.root, "opening")
	switch b, err := os.ReadFile(path); {
	case err == nil && len(b) <= maxOpening:
		s.last = strings.TrimSpace(string(b))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	s.opening = rand.Text()
	return durable.WriteFile(s.tmp(), path, []byte(s.opening+"\n"))
}

// recognize tells a registry folder from others.
func recognize(root string) error {
	b, err := os.ReadFile(filepath.Join(root, "layout"))
	switch {
	case err == nil && string(b) == layoutText:
		return nil
	case err == nil:
		return fmt.Errorf("%w of this version (its layout is %.40q, this program knows %q)", ErrNotRegistry, b, layoutText)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock", "lost+found", "tmp", "uploads", "blobs", "repositories": // a first start that was cut short
		default:
			return fmt.Errorf("%w: it holds %s (give an empty folder or one that does not exist)", ErrNotRegistry, e.Name())
		}
	}
	return nil
}

// writable adds to an error what to do about a folder that cannot be written.
func writable(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w (the registry has to write there)", err)
	}
	return storageError(err)
}

// Close gives the folder back. No other call may be running.
func (s *Store) Close() error {
	<-s.flushed
	return s.lock.Unlock()
}

func (s *Store) tmp() string { return filepath.Join(s.root, "tmp") }

func (s *Store) blobPath(d digest.Digest) string {
	hex := d.Encoded()
	return filepath.Join(s.root, "blobs", d.Algorithm().String(), hex[:2], hex)
}

// repoPath returns a path below a repository's folder.
func (s *Store) repoPath(repository string, elem ...string) string {
	return filepath.Join(append([]string{s.root, "repositories", filepath.FromSlash(repository)}, elem...)...)
}

// fileName writes a digest as the name of a file.
func fileName(d digest.Digest) string { return d.Algorithm().String() + "-" + d.Encoded() }

// parseFileName reads what fileName wrote.
func parseFileName(name string) (digest.Digest, bool) {
	for i := range name {
		if name[i] == '-' {
			d, err := regstore.ParseDigest(name[:i] + ":" + name[i+1:])
			return d, err == nil
		}
	}
	return "", false
}

// escapeTag writes a tag as the name of a file: in lower case and then, if
// that changed it, '!' and a hexadecimal digit for each four characters, whose
// bits say which were upper case. That is at most 161 bytes.
func escapeTag(tag string) string {
	lower := strings.ToLower(tag)
	if lower == tag {
		return tag
	}
	digits := make([]byte, (len(tag)+3)/4)
	for i := range len(tag) {
		if tag[i] != lower[i] {
			digits[i/4] |= 1 << (i % 4)
		}
	}
	for i, d := range digits {
		digits[i] = "0123456789abcdef"[d]
	}
	return lower + "!" + strings.TrimRight(string(digits), "0")
}

// unescapeTag reads what escapeTag wrote.
func unescapeTag(name string) (string, bool) {
	lower, digits, _ := strings.Cut(name, "!")
	tag := []byte(lower)
	for i := range tag {
		if i/4 >= len(digits) {
			break
		}
		d := strings.IndexByte("0123456789abcdef", digits[i/4])
		if d >= 0 && d&(1<<(i%4)) != 0 && 'a' <= tag[i] && tag[i] <= 'z' {
			tag[i] -= 'a' - 'A'
		}
	}
	return string(tag), regstore.ValidTag(string(tag)) && escapeTag(string(tag)) == name
}

// exists reports whether there is a file.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return true, nil
	case notExist(err):
		return false, nil
	}
	return false, storageError(err)
}

// notExist also knows a path through something that is no folder.
func notExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// storageError adds what a driver says about a medium that is full or does
// not answer.
func storageError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", regstore.ErrNoSpace, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", regstore.ErrReadOnly, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w: %w", regstore.ErrUnavailable, err)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// stripes are locks for a set of names that is too large for a lock each.
type stripes struct{ locks [512]sync.RWMutex }

var stripeSeed = maphash.MakeSeed()

func (s *stripes) index(name string) int {
	return int(maphash.String(stripeSeed, name) % uint64(len(s.locks)))
}

func (s *stripes) of(name string) *sync.RWMutex { return &s.locks[s.index(name)] }

// barrier waits until nobody holds a lock that was taken before.
func (s *stripes) barrier() {
	for i := range s.locks {
		s.locks[i].Lock()
		s.locks[i].Unlock() //nolint:staticcheck // waiting is all
	}
}
