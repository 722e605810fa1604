package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/krmcat/krmcat/catalog/index"
	"github.com/krmcat/krmcat/web/api"
	"github.com/krmcat/krmcat/web/ui"
)

// httpError is an error whose message and fix are for the client. The cause
// is logged and never sent.
type httpError struct {
	status int
	msg    string
	fix    string
	err    error
}

func (e *httpError) Error() string {
	if e.err == nil {
		return e.msg
	}
	return e.msg + ": " + e.err.Error()
}

func (e *httpError) Unwrap() error { return e.err }

// handler answers a request, or says why not.
type handler func(w http.ResponseWriter, r *http.Request) error

// classify makes an error of the index one for the client.
func classify(err error) *httpError {
	if he, ok := errors.AsType[*httpError](err); ok {
		return he
	}
	switch {
	case errors.Is(err, index.ErrNotFound):
		return &httpError{status: http.StatusNotFound, msg: err.Error()}
	case errors.Is(err, index.ErrNotReady):
		return &httpError{status: http.StatusServiceUnavailable, msg: "the index cannot answer just now", fix: "try again in a few seconds", err: err}
	}
	return &httpError{status: http.StatusInternalServerError, msg: "the server could not do this; its log says why", err: err}
}

// answer is what is common to all errors. It reports whether there is anybody
// left to tell.
func (s *server) answer(w http.ResponseWriter, r *http.Request, he *httpError) bool {
	if r.Context().Err() != nil {
		return false
	}
	if he.err != nil {
		s.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "status", he.status, "error", he.err)
	}
	h := w.Header()
	for _, k := range []string{"Etag", "Last-Modified", "Repr-Digest", "Content-Encoding", "Link"} {
		h.Del(k)
	}
	h.Set("Cache-Control", "no-store")
	switch he.status {
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "2")
	case http.StatusMethodNotAllowed:
		h.Set("Allow", "GET, HEAD")
	}
	return true
}

// machine answers errors with problem+json.
func (s *server) machine(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil {
			return
		}
		he := classify(err)
		if !s.answer(w, r, he) {
			return
		}
		body, err := json.Marshal(api.Problem{
			Type: "about:blank", Title: http.StatusText(he.status), Status: he.status, Detail: he.msg, Hint: he.fix,
		})
		if err != nil {
			s.log.ErrorContext(r.Context(), "problem cannot be written", "error", err)
		}
		write(w, r, he.status, api.MediaTypeProblem, append(body, '\n'))
	})
}

// page answers errors with a page.
func (s *server) page(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil {
			return
		}
		he := classify(err)
		if !s.answer(w, r, he) {
			return
		}
		p := &ui.Error{Status: he.status, Title: http.StatusText(he.status), Message: he.msg, Fix: he.fix}
		p.Site = s.site(r, p.Title)
		if err := s.render(w, r, he.status, p); err != nil {
			s.log.ErrorContext(r.Context(), "page cannot be written", "error", err)
		}
	})
}

// render writes a page.
func (s *server) render(w http.ResponseWriter, r *http.Request, status int, p ui.Page) error {
	var b bytes.Buffer
	if err := s.ui.Render(&b, p); err != nil {
		return fmt.Errorf("rendering a page: %w", err)
	}
	write(w, r, status, "text/html; charset=utf-8", b.Bytes())
	return nil
}

// writeJSON writes a value.
func writeJSON(w http.ResponseWriter, r *http.Request, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	if w.Header().Get("Cache-Control") == "" {
		w.Header().Set("Cache-Control", "no-cache")
	}
	write(w, r, http.StatusOK, api.MediaTypeJSON, b.Bytes())
	return nil
}

// write writes a whole body. A failure to write is the client's going away.
func write(w http.ResponseWriter, r *http.Request, status int, mediaType string, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // nobody to tell
	}
}
