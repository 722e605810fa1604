package regbucket

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
)

// Repositories lists the repositories that have a manifest. It costs a
// request for each repository.
func (s *Store) Repositories(ctx context.Context, after string) iter.Seq2[string, error] {
	return s.repositories(ctx, after, func(n *node) bool { return n.manifests })
}

// repositories lists what is a repository.
func (s *Store) repositories(ctx context.Context, after string, is func(*node) bool) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		w := &walker{s: s, is: is, after: after, yield: yield}
		defer w.running.Wait() // nothing goes on when the list has ended
		defer cancel()
		root, err := s.node(ctx, "")
		if err != nil {
			yield("", err)
			return
		}
		w.walk(ctx, "", root)
	}
}

// node is a component of repository names.
type node struct {
	children  []string
	manifests bool // it is a repository that has manifests
	anything  bool // it is a repository
}

// node reads what is below a name, which is empty or ends with a slash.
func (s *Store) node(ctx context.Context, name string) (*node, error) {
	n := &node{}
	prefix := s.prefix + "repositories/" + name
	for o, err := range s.list(ctx, prefix, "", false, 0) {
		if err != nil {
			return nil, err
		}
		child, ok := strings.CutSuffix(strings.TrimPrefix(o.Key, prefix), "/")
		switch {
		case !ok:
		case strings.HasPrefix(child, "_"):
			n.anything = true
			n.manifests = n.manifests || child == "_manifests"
		default:
			n.children = append(n.children, child)
		}
	}
	return n, nil
}

// walker lists repositories.
type walker struct {
	s       *Store
	is      func(*node) bool
	after   string
	yield   func(string, error) bool
	running sync.WaitGroup
}

// walk lists the repositories below a name. Those below a component sort
// after the ones that begin with it and go on with a character before the
// slash, so each component is two entries: itself, and what is below it.
func (w *walker) walk(ctx context.Context, prefix string, n *node) bool {
	after := w.after
	var entries, todo []string
	for _, c := range n.children {
		name := prefix + c
		if name > after || name+"/" > after || strings.HasPrefix(after, name+"/") {
			entries = append(entries, name, name+"/")
			todo = append(todo, name)
		}
	}
	slices.Sort(entries)
	slices.Sort(todo)
	type found struct {
		n   *node
		err error
	}
	started := map[string]chan found{}
	get := func(name string) (*node, error) {
		// Some that come next are asked for at the same time.
		for len(todo) > 0 && (len(started) < width || started[name] == nil) {
			next := todo[0]
			todo = todo[1:]
			ch := make(chan found, 1)
			started[next] = ch
			w.running.Go(func() {
				n, err := w.s.node(ctx, next+"/")
				ch <- found{n, err}
			})
		}
		f := <-started[name]
		started[name] <- f // it is asked for twice
		return f.n, f.err
	}
	for _, e := range entries {
		name, below := strings.CutSuffix(e, "/")
		switch {
		case below && (e > after || strings.HasPrefix(after, e)):
			n, err := get(name)
			if err != nil {
				w.yield("", err)
				return false
			}
			if !w.walk(ctx, e, n) {
				return false
			}
		case !below && e > after:
			n, err := get(name)
			if err != nil {
				w.yield("", err)
				return false
			}
			if w.is(n) && !w.yield(e, nil) {
				return false
			}
		}
		if below {
			delete(started, name)
		}
	}
	return true
}
