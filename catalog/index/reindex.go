package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// readersAtOnce is how many repositories are read at the same time.
const readersAtOnce = 4

// maxFailures is how many tags in a row may fail to be read before the store,
// and not what is in it, is taken to be the reason.
const maxFailures = 10

// Reindex compares the index with everything that the registry holds and
// brings it in step. With reread, documents that are known are read again. It
// may run beside pushes and questions. A tag that cannot be read, because
// something is damaged, is passed over.
func (x *Index) Reindex(ctx context.Context, reread bool) error {
	if err := x.prepare(ctx); err != nil {
		return err
	}
	r := &reindexing{x: x, how: takeCompare, seen: map[string]bool{}}
	if reread {
		r.how = takeAgain
	}
	begun := x.now()
	if err := r.read(ctx); err != nil {
		return err
	}
	if err := r.forget(ctx); err != nil {
		return err
	}
	if err := x.setMeta(ctx, x.wdb(), metaBuilt, "1"); err != nil {
		return err
	}
	x.setReady()
	x.compared.Store(time.Now().UnixNano())
	x.unread.Store(r.failures > 0)
	duration := x.now().Sub(begun).Round(time.Millisecond)
	if r.failures > 0 {
		// Not in step: it is tried again later, and at the next start.
		x.log.ErrorContext(ctx, "some tags cannot be read and are not in the index; run fsck", "failures", r.failures, "tags", len(r.seen), "duration", duration)
		return nil
	}
	x.log.InfoContext(ctx, "index is in step with the registry", "tags", len(r.seen), "duration", duration)
	return x.setInStep(ctx)
}

// reindexing is a run of Reindex.
type reindexing struct {
	x   *Index
	how taking

	mu       sync.Mutex
	seen     map[string]bool // repository:tag
	failures int
	inARow   int
}

// read takes in everything that the registry has.
func (r *reindexing) read(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readersAtOnce)
	for repository, err := range r.x.store.Repositories(gctx, "") {
		if err != nil {
			return errors.Join(fmt.Errorf("reading the registry: %w", err), g.Wait())
		}
		g.Go(func() error { return r.repository(gctx, repository) })
		if gctx.Err() != nil {
			break
		}
	}
	return g.Wait()
}

func (r *reindexing) repository(ctx context.Context, repository string) error {
	var tags []string
	take := func(least int) error {
		for len(tags) > least {
			n, err := r.x.takeTags(ctx, repository, tags, r.how)
			if err := r.note(ctx, repository, tags[:max(n, 1)], err); err != nil {
				return err
			}
			tags = tags[max(n, 1):]
		}
		return nil
	}
	for tag, err := range r.x.store.Tags(ctx, repository, "") {
		if errors.Is(err, fs.ErrNotExist) {
			break // deleted since it was listed
		}
		if err != nil {
			return fmt.Errorf("reading the registry: %w", err)
		}
		if tags = append(tags, tag); len(tags) >= 2*maxTogether {
			if err := take(maxTogether); err != nil {
				return err
			}
		}
	}
	return take(0)
}

// note records that tags were taken in, or that the first one could not be.
func (r *reindexing) note(ctx context.Context, repository string, tags []string, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range tags {
		r.seen[repository+":"+t] = true
	}
	if err == nil {
		r.inARow = 0
		return nil
	}
	err = fmt.Errorf("reading %s:%s: %w", repository, tags[0], err)
	r.inARow++
	var se *storeError
	if ctx.Err() != nil || !errors.As(err, &se) || r.inARow > maxFailures {
		return err
	}
	r.failures++
	r.x.log.WarnContext(ctx, "tag is not in the index", "error", err)
	return nil
}

// forget looks again at what the index has and the registry was not seen to
// have.
func (r *reindexing) forget(ctx context.Context) error {
	x := r.x
	known, err := strings1(x.rdb().QueryContext(ctx, `SELECT repository || ':' || tag FROM tags ORDER BY repository, tag`))
	if err != nil {
		return err
	}
	for _, k := range known {
		if r.seen[k] {
			continue
		}
		repository, tag, _ := strings.Cut(k, ":")
		if err := x.takeTag(ctx, repository, tag); err != nil {
			return fmt.Errorf("looking up %s: %w", k, err)
		}
	}
	// Referrers that are gone, and those that came without a trace.
	known, err = strings1(x.rdb().QueryContext(ctx, `SELECT repository || '|' || source FROM referrers ORDER BY repository, source`))
	if err != nil {
		return err
	}
	for _, k := range known {
		repository, source, _ := strings.Cut(k, "|")
		if _, err := x.store.Resolve(ctx, repository, source); errors.Is(err, fs.ErrNotExist) {
			if err := x.updateShown(ctx, func(tx *sql.Tx) ([]subject, error) { return x.dropReferrer(ctx, tx, repository, source) }); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}
