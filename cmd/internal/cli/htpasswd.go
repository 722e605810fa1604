package cli

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/krmcat/krmcat/registry/regserver"
)

// maxUsersFile bounds a file of users.
const maxUsersFile = 1 << 20

// passwords is a file of users and bcrypt hashes, as htpasswd -B writes it.
// It is read again when it changes.
type passwords struct {
	file string
	now  func() time.Time

	mu      sync.Mutex
	checked time.Time
	stamp   os.FileInfo
	hashes  map[string][]byte
	// proven keeps what was proven lately, as proving takes bcrypt tens of
	// milliseconds and a push makes a dozen requests.
	proven map[[sha256.Size]byte]time.Time
}

const (
	usersEvery  = 2 * time.Second // how often the file is looked at
	provenFor   = 5 * time.Minute
	maxProven   = 1000
	bcryptWorks = 4 // proofs at the same time
)

// newPasswords reads a file of users; one that cannot be used is an error.
func newPasswords(file string) (*passwords, error) {
	p := &passwords{file: file, now: time.Now}
	if err := p.load(); err != nil {
		return nil, err
	}
	return p, nil
}

// load reads the file if it changed; the caller holds the lock or is alone.
func (p *passwords) load() error {
	info, err := os.Stat(p.file)
	if err != nil {
		return err
	}
	p.checked = p.now()
	if p.stamp != nil && info.ModTime().Equal(p.stamp.ModTime()) && info.Size() == p.stamp.Size() && os.SameFile(info, p.stamp) {
		return nil
	}
	f, err := os.Open(p.file)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxUsersFile+1))
	if err != nil {
		return err
	}
	hashes, err := parseUsers(p.file, data)
	if err != nil {
		return err
	}
	p.stamp, p.hashes, p.proven = info, hashes, map[[sha256.Size]byte]time.Time{}
	return nil
}

// parseUsers reads lines of USER:HASH. Hashes other than bcrypt's are refused
// rather than never matched.
func parseUsers(name string, data []byte) (map[string][]byte, error) {
	if len(data) > maxUsersFile {
		return nil, fmt.Errorf("%s: more than %d bytes", name, maxUsersFile)
	}
	hashes := map[string][]byte{}
	s := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		user, hash, ok := strings.Cut(line, ":")
		if !ok || user == "" {
			return nil, fmt.Errorf("%s:%d: no USER:HASH", name, n)
		}
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return nil, fmt.Errorf("%s:%d: the password of %q is not hashed with bcrypt (use htpasswd -B)", name, n, user)
		}
		if hashes[user] != nil {
			return nil, fmt.Errorf("%s:%d: %q is there twice", name, n, user)
		}
		hashes[user] = []byte(hash)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("%s: no users", name)
	}
	return hashes, nil
}

// nobody is compared with when a user is not known, so that an answer takes
// the same time.
var nobody = sync.OnceValue(func() []byte {
	hash, err := bcrypt.GenerateFromPassword([]byte("nobody"), bcrypt.DefaultCost)
	if err != nil {
		return nil
	}
	return hash
})

var proving = make(chan struct{}, bcryptWorks)

// check reports whether a user has a password.
func (p *passwords) check(user, password string) (bool, error) {
	if len(password) > 72 {
		return false, nil // bcrypt knows no longer ones
	}
	key := sha256.Sum256([]byte(user + "\x00" + password))
	p.mu.Lock()
	if p.now().Sub(p.checked) > usersEvery {
		if err := p.load(); err != nil {
			p.mu.Unlock()
			return false, err
		}
	}
	until, ok := p.proven[key]
	hash := p.hashes[user]
	p.mu.Unlock()
	if ok && p.now().Before(until) {
		return true, nil
	}
	known := hash != nil
	if !known {
		hash = nobody()
	}
	proving <- struct{}{}
	err := bcrypt.CompareHashAndPassword(hash, []byte(password))
	<-proving
	if errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) || !known {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.proven) >= maxProven {
		clear(p.proven)
	}
	p.proven[key] = p.now().Add(provenFor)
	return true, nil
}

// challenge is how clients learn that they have to log in.
const challenge = `Basic realm="krmcat", charset="UTF-8"`

// authorize lets everybody read and users write. A wrong password is refused
// for reading as well, so that krmcat login can tell.
func (p *passwords) authorize(r *http.Request, a regserver.Access) error {
	write := a.Action == regserver.ActionPush || a.Action == regserver.ActionDelete
	user, password, ok := r.BasicAuth()
	if !ok {
		if r.Header.Get("Authorization") == "" && (!write && a.Action != regserver.ActionPing) {
			return nil
		}
		if a.Action == regserver.ActionPing && r.Header.Get("Authorization") == "" {
			// Clients ask here first whether and how to log in; an anonymous
			// one reads on without.
			return &regserver.UnauthorizedError{Challenge: challenge, Message: "log in to publish; reading needs no login"}
		}
		return &regserver.UnauthorizedError{Challenge: challenge, Message: "log in to publish"}
	}
	good, err := p.check(user, password)
	if err != nil {
		return err
	}
	if !good {
		return &regserver.UnauthorizedError{Challenge: challenge, Message: "user name or password is wrong"}
	}
	return nil
}
